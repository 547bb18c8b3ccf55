# nix build './packaging/nix', in a checkout.
{
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      root = ../..;
      each = nixpkgs.lib.genAttrs [ "x86_64-linux" "aarch64-linux" ];
      workspace = (fromTOML (builtins.readFile (root + "/Cargo.toml"))).workspace;
    in {
      packages = each (system:
        let pkgs = nixpkgs.legacyPackages.${system};
        in {
          default = pkgs.rustPlatform.buildRustPackage {
            pname = "pinfold";
            version = workspace.package.version;
            src = root;
            cargoLock.lockFile = root + "/Cargo.lock";
            cargoBuildFlags = [ "--package" "pinfold" ];
            # They need a host and its tools: cargo xtask test.
            doCheck = false;
            nativeBuildInputs = [ pkgs.pkg-config ];
            buildInputs = [ pkgs.hwloc pkgs.udev ];
            installPhase = ''
              PREFIX=$out UNINSTALLER=no BINARY=$(find target -path '*/release/pinfold') \
                sh packaging/install.sh
            '';
            meta.description = workspace.package.description;
            meta.mainProgram = "pinfold";
          };
        });
    };
}
