//! QEMU and libvirt: find the threads of a virtual machine, start one pinned without a race.
