//! Programs and devices for guests: QEMU, KVM, libvirt.

use pinfold_host::process::{capture, find_program};
use pinfold_host::{HostError, paths};

use super::scheduling::not_live;
use super::{Capability, Context};
use crate::reader::describe_error;

/// Timeout of `qemu --version`.
const VERSION_TIMEOUT_NS: u64 = 5_000_000_000;

/// Errno of `read(2)` on a device without read support, which means that it was opened.
const EINVAL: i32 = 22;
const EACCES: i32 = 13;
const EPERM: i32 = 1;

/// QEMU for this machine's architecture.
pub(super) fn qemu(context: &Context<'_>) -> Capability {
    const NAME: &str = "QEMU";
    if !context.host.is_live() {
        return not_live(NAME).require();
    }
    let emulator = format!("qemu-system-{}", qemu_arch());
    let found =
        [emulator.as_str(), "qemu-kvm", "/usr/libexec/qemu-kvm"].into_iter().find_map(find_program);
    let Some(program) = found else {
        return Capability::no(NAME, format!("{emulator} is not in PATH"))
            .hint("`apt-get install qemu-system` (Debian, Ubuntu), `dnf install qemu-kvm` (Fedora)")
            .require();
    };
    let capability = match capture(&program, ["--version"], VERSION_TIMEOUT_NS) {
        Err(error) => {
            Capability::no(NAME, describe_error(&error)).hint(format!("run `{program} --version`"))
        }
        Ok(output) if !output.status.success() => Capability::no(
            NAME,
            format!("{program} --version fails: {}", first_line(&output.stderr_text())),
        )
        .hint("reinstall QEMU: a library may be missing"),
        Ok(output) => match version(&output.stdout_text()) {
            Some(version) => Capability::yes(NAME, format!("{program}, version {version}")),
            None => Capability::partly(NAME, format!("{program} does not name its version")),
        },
    };
    capability.require()
}

/// QEMU's name for the architecture of this build.
fn qemu_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86" => "i386",
        "powerpc64" => "ppc64",
        other => other,
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("no message")
}

/// Extracts the version of `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)`.
fn version(text: &str) -> Option<&str> {
    first_line(text).split_once("version ")?.1.split_ascii_whitespace().next()
}

/// Hardware virtualisation, and this user's permission. Reading the device fails with `EINVAL` if
/// it can be opened, else with the reason why it cannot.
pub(super) fn kvm(context: &Context<'_>) -> Capability {
    const NAME: &str = "KVM";
    let device = paths::kvm_device();
    if !context.host.is_live() {
        return not_live(NAME);
    }
    let answer = context.host.read(&device).map_err(|error| (error.errno(), error));
    match answer {
        Ok(_) | Err((Some(EINVAL), _)) => usable_kvm(context),
        Err((_, error)) if error.is_gone() => no_kvm(&device, &error),
        Err((Some(EACCES | EPERM), error)) => Capability::no(NAME, describe_error(&error))
            .hint("`usermod -aG kvm USER` and log in again; guests run emulated (TCG) until then"),
        Err((_, error)) => Capability::no(NAME, describe_error(&error)),
    }
}

fn usable_kvm(context: &Context<'_>) -> Capability {
    let device = paths::kvm_device();
    if context.host.exists(&paths::module_dir("kvm_pvm")) {
        return Capability::partly(
            "KVM",
            format!(
                "{device} opens, but it is paravirtual (module kvm_pvm): it emulates guests in \
                 real and long mode, and ordinary kernels do not boot on it"
            ),
        )
        .hint("such guests run emulated (TCG); measure KVM on bare metal or with nested KVM");
    }
    let module = ["kvm_intel", "kvm_amd"]
        .into_iter()
        .find(|module| context.host.exists(&paths::module_dir(module)));
    match module {
        Some(module) => Capability::yes("KVM", format!("{device} opens, module {module}")),
        None => Capability::yes("KVM", format!("{device} opens")),
    }
}

fn no_kvm(device: &str, error: &HostError) -> Capability {
    Capability::no(
        "KVM",
        format!("no {device} ({}): guests run emulated (TCG)", describe_error(error)),
    )
    .hint(
        "`modprobe kvm_intel` or `modprobe kvm_amd`; enable virtualisation in the firmware, or \
             nested virtualisation if this is a guest",
    )
}

/// libvirt, for the machines that it manages.
pub(super) fn libvirt(context: &Context<'_>) -> Capability {
    const NAME: &str = "libvirt";
    if !context.host.is_live() {
        return not_live(NAME);
    }
    match find_program("virsh") {
        Some(program) => Capability::yes(NAME, program),
        None => Capability::no(NAME, "virsh is not in PATH")
            .hint("only needed for machines that libvirt runs: `apt-get install libvirt-clients`"),
    }
}
