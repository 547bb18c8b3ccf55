//! A KVM guest of a few instructions that causes a known number of exits.
//!
//! It runs in real mode with one page of memory: a loop per kind of work, then `hlt`. An exit
//! counter can thus be checked against the requested numbers. It has no interrupts, devices or
//! clock: port and MMIO writes exit to this process, which ignores them.
//! <https://docs.kernel.org/virt/kvm/api.html>

#[cfg(not(target_arch = "x86_64"))]
use crate::HostError;

/// Number of executions of each instruction that causes an exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// `cpuid`.
    pub cpuid: u32,
    /// `rdmsr` of `IA32_APIC_BASE` (0x1b).
    pub rdmsr: u32,
    /// `out` of a byte to port [`Work::PORT`].
    pub out: u32,
    /// A byte write to guest-physical address [`Work::MMIO`], where there is no memory.
    pub mmio: u32,
}

impl Work {
    /// The port that is written; no device uses it.
    pub const PORT: u16 = 0x5a0;
    /// The guest-physical address that is written.
    pub const MMIO: u64 = 0x2_0000;
    /// Maximum of each kind, so that a run takes at most some minutes.
    pub const MOST: u32 = 10_000_000;

    /// The guest's code: 16-bit, with a counter in `esi`.
    #[cfg(any(target_arch = "x86_64", test))]
    fn code(self) -> Vec<u8> {
        let mut code = Vec::new();
        // xor eax, eax; cpuid
        section(&mut code, self.cpuid, &[0x66, 0x31, 0xc0, 0x0f, 0xa2]);
        // mov ecx, 0x1b; rdmsr
        section(&mut code, self.rdmsr, &[0x66, 0xb9, 0x1b, 0, 0, 0, 0x0f, 0x32]);
        // mov dx, 0x5a0; out dx, al
        section(&mut code, self.out, &[0xba, 0xa0, 0x05, 0xee]);
        // mov ax, 0x2000; mov ds, ax; mov [0], al
        section(&mut code, self.mmio, &[0xb8, 0, 0x20, 0x8e, 0xd8, 0xa2, 0, 0]);
        code.push(0xf4); // hlt
        code
    }
}

/// `mov esi, COUNT; again: BODY; dec esi; jnz again`; nothing for a count of 0.
#[cfg(any(target_arch = "x86_64", test))]
fn section(code: &mut Vec<u8>, count: u32, body: &[u8]) {
    if count == 0 {
        return;
    }
    code.extend([0x66, 0xbe]);
    code.extend(count.to_le_bytes());
    code.extend(body);
    code.extend([0x66, 0x4e, 0x75]);
    // Jump back over the body, `dec` and the jump itself; every body is a few bytes long.
    let back = i8::try_from(body.len() + 4).unwrap_or(i8::MAX);
    code.push(back.wrapping_neg().cast_unsigned());
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuRun {
    /// Number of exits for writes to [`Work::PORT`].
    pub out: u32,
    /// Number of exits for writes to [`Work::MMIO`].
    pub mmio: u32,
    /// CPU time of this thread during the run (ns), without time in which other threads had the
    /// CPU.
    pub cpu_ns: u64,
}

/// The guest. Its vCPU runs in the thread that calls [`MicroGuest::run`].
#[derive(Debug)]
pub struct MicroGuest {
    #[cfg(target_arch = "x86_64")]
    kvm: kvm_ioctls::Kvm,
}

#[cfg(not(target_arch = "x86_64"))]
impl MicroGuest {
    /// Available on x86-64 only.
    ///
    /// # Errors
    /// Always [`HostError::Unexpected`].
    pub fn new() -> Result<Self, HostError> {
        let why = "the micro-guest is for x86-64 machines".to_owned();
        Err(HostError::Unexpected { path: crate::paths::kvm_device(), why })
    }

    /// Never called: no guest exists.
    ///
    /// # Errors
    /// Always [`HostError::Unexpected`].
    pub fn run(&mut self, _work: Work) -> Result<VcpuRun, HostError> {
        Self::new().map(|_| VcpuRun::default())
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::io;

    use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
    use rustix::thread::ClockId;

    use super::{MicroGuest, VcpuRun, Work};
    use crate::raw::GuestMemory;
    use crate::{HostError, paths};

    const MEMORY: usize = 4096;

    impl MicroGuest {
        /// Opens KVM.
        ///
        /// # Errors
        /// [`HostError::File`]: `ENOENT` without KVM, `EACCES` without permission.
        pub fn new() -> Result<Self, HostError> {
            Kvm::new().map(|kvm| Self { kvm }).map_err(|error| fail("open", error.errno()))
        }

        /// Causes the exits. Each call creates a virtual machine, which ends with the call.
        ///
        /// # Errors
        /// [`HostError::File`] if KVM refuses, `EINVAL` for more than [`Work::MOST`];
        /// [`HostError::Unexpected`] if the guest exits for any other reason.
        pub fn run(&mut self, work: Work) -> Result<VcpuRun, HostError> {
            if [work.cpuid, work.rdmsr, work.out, work.mmio].iter().any(|n| *n > Work::MOST) {
                return Err(fail("run a guest of", libc::EINVAL));
            }
            let vm = self.kvm.create_vm().map_err(of_kvm)?;
            let memory = GuestMemory::new(vm, MEMORY, &work.code()).map_err(|source| {
                HostError::file("make a guest of", &paths::kvm_device(), source)
            })?;
            let mut vcpu = memory.vm().create_vcpu(0).map_err(of_kvm)?;
            let mut special = vcpu.get_sregs().map_err(of_kvm)?;
            for segment in [&mut special.cs, &mut special.ds] {
                segment.base = 0;
                segment.selector = 0;
            }
            vcpu.set_sregs(&special).map_err(of_kvm)?;
            let mut registers = vcpu.get_regs().map_err(of_kvm)?;
            registers.rip = 0;
            registers.rflags = 2;
            vcpu.set_regs(&registers).map_err(of_kvm)?;
            let began = cpu_time();
            let ran = until_halt(&mut vcpu)?;
            Ok(VcpuRun { cpu_ns: cpu_time().saturating_sub(began), ..ran })
        }
    }

    fn of_kvm(error: kvm_ioctls::Error) -> HostError {
        fail("make a guest of", error.errno())
    }

    fn until_halt(vcpu: &mut VcpuFd) -> Result<VcpuRun, HostError> {
        let mut ran = VcpuRun::default();
        loop {
            match vcpu.run() {
                Ok(VcpuExit::IoOut(Work::PORT, _)) => ran.out += 1,
                Ok(VcpuExit::MmioWrite(Work::MMIO, _)) => ran.mmio += 1,
                Ok(VcpuExit::Hlt) => return Ok(ran),
                Ok(other) => {
                    let why = format!("the micro-guest exited with {other:?}");
                    return Err(HostError::Unexpected { path: paths::kvm_device(), why });
                }
                Err(error) if error.errno() == libc::EINTR => {}
                Err(error) => return Err(fail("run a guest of", error.errno())),
            }
        }
    }

    fn cpu_time() -> u64 {
        let now = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
    }

    fn fail(operation: &'static str, errno: i32) -> HostError {
        HostError::file(operation, &paths::kvm_device(), io::Error::from_raw_os_error(errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_loops_as_often_as_asked() {
        let work = Work { out: 0x0102, ..Work::default() };
        let expected = [0x66, 0xbe, 2, 1, 0, 0, 0xba, 0xa0, 5, 0xee, 0x66, 0x4e, 0x75, 0xf8, 0xf4];
        assert_eq!(work.code(), expected);
        assert_eq!(Work::default().code(), [0xf4]);
    }

    #[test]
    fn a_guest_makes_the_exits_that_were_asked() {
        let mut guest = match MicroGuest::new() {
            Ok(guest) => guest,
            Err(error) => {
                println!("skipped: no KVM here: {error}");
                return;
            }
        };
        let ran = guest.run(Work { cpuid: 5, rdmsr: 6, out: 7, mmio: 8 }).unwrap();
        assert_eq!((ran.out, ran.mmio), (7, 8));
        assert_eq!(guest.run(Work::default()).unwrap().out, 0);
        let error = guest.run(Work { out: Work::MOST + 1, ..Work::default() }).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EINVAL));
    }
}
