//! The initramfs: `pinload` as init, and the kernel modules with their order.

use pinfold_host::files;

use super::GuestError;
use super::cpio::Cpio;
use super::kernel::GuestKernel;

/// Builds the archive: `/init` is `pinload`, `/pinload/modules.list` names the modules in
/// the order of insertion.
///
/// # Errors
/// [`GuestError`] if a module in the cache cannot be read.
pub fn build(kernel: &GuestKernel, pinload: &[u8]) -> Result<Vec<u8>, GuestError> {
    let mut archive = Cpio::new();
    for folder in ["dev", "proc", "sys", "tmp", "pinload", "pinload/modules"] {
        archive.directory(folder);
    }
    archive.program("init", pinload);
    let mut list = String::new();
    for path in &kernel.modules {
        let file = path.rsplit('/').next().unwrap_or(path);
        let inside = format!("pinload/modules/{file}");
        archive.file(&inside, &files::read(path)?);
        list.push_str(&format!("/{inside}\n"));
    }
    archive.file("pinload/modules.list", list.as_bytes());
    Ok(archive.finish())
}
