//! Memory of a KVM guest: pages of this process that are mapped into a virtual machine.

use std::io;
use std::ptr;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;

use super::mapping::Mapping;

/// Memory of one slot of a virtual machine, together with the machine's descriptor.
#[derive(Debug)]
pub(crate) struct GuestMemory {
    // Dropped first: a guest that still ran would find no memory there, which is an error of its
    // `KVM_RUN`, not of this process.
    _pages: Mapping,
    vm: VmFd,
}

impl GuestMemory {
    /// Maps `length` bytes at the machine's physical address 0 and copies `content` to their start.
    pub(crate) fn new(vm: VmFd, length: usize, content: &[u8]) -> io::Result<Self> {
        if content.len() > length || !length.is_multiple_of(rustix::param::page_size()) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mapping = Mapping::private(length)?;
        let pages = mapping.start();
        let memory = Self { _pages: mapping, vm };
        // SAFETY:
        // - the mapping is writable for `length` bytes, and `content` is not longer than that;
        // - the two do not overlap, because the mapping is new.
        unsafe { ptr::copy_nonoverlapping(content.as_ptr(), pages.cast(), content.len()) };
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: length as u64,
            userspace_addr: pages as u64,
        };
        // SAFETY:
        // - the pages are mapped for as long as the machine can use them: only the drop of this
        //   value, which owns the machine's descriptor, unmaps them;
        // - this process has no reference into them while the guest writes there.
        unsafe { memory.vm.set_user_memory_region(region) }
            .map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        Ok(memory)
    }

    /// The virtual machine.
    pub(crate) fn vm(&self) -> &VmFd {
        &self.vm
    }
}
