//! Round trips through the kernel, only on threads of this test.

use pinfold_model::{CpuSet, Policy, PuId, Tid};

use super::*;

#[test]
fn attributes_carry_every_policy() {
    check(Policy::Other { nice: -20 });
    check(Policy::Batch { nice: 19 });
    check(Policy::Idle);
    check(Policy::Fifo { priority: 99 });
    check(Policy::RoundRobin { priority: 1 });
    check(Policy::Deadline { runtime_ns: 1, deadline_ns: 2, period_ns: 3 });
    check(Policy::Unknown { number: 7 });
}

fn check(policy: Policy) {
    assert_eq!(SchedAttr::default().with_policy(policy).policy(), policy);
}

#[test]
fn what_a_policy_does_not_mention_stays() {
    let current = SchedAttr { flags: RESET_ON_FORK | 0x40, nice: 5, ..SchedAttr::default() };
    let idle = current.with_policy(Policy::Idle);
    assert_eq!((idle.flags, idle.nice, idle.size), (RESET_ON_FORK, 5, 56));
    assert_eq!(current.with_policy(Policy::Fifo { priority: 1 }).nice, 0);
}

#[test]
fn affinity_of_an_own_thread() {
    std::thread::spawn(|| {
        let before = sched_getaffinity(Tid(0)).unwrap();
        let first = CpuSet::single(before.first().unwrap());
        sched_setaffinity(Tid(0), &first).unwrap();
        assert_eq!(sched_getaffinity(Tid(0)).unwrap(), first);
        // CPUs that this machine does not have are accepted, and so is a mask longer than the
        // kernel's.
        let beyond = first.union(&CpuSet::single(PuId(20_000)));
        sched_setaffinity(Tid(0), &beyond).unwrap();
        assert_eq!(sched_getaffinity(Tid(0)).unwrap(), first);
        let none = sched_setaffinity(Tid(0), &CpuSet::single(PuId(20_000))).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::EINVAL));
        let empty = sched_setaffinity(Tid(0), &CpuSet::new()).unwrap_err();
        assert_eq!(empty.raw_os_error(), Some(libc::EINVAL));
        sched_setaffinity(Tid(0), &before).unwrap();
    })
    .join()
    .unwrap();
}

#[test]
fn policy_of_an_own_thread() {
    std::thread::spawn(|| {
        set_policy(Policy::Other { nice: 3 });
        set_policy(Policy::Batch { nice: 4 });
        set_policy(Policy::Idle);
        // The idle policy, which does not use a nice value, keeps it.
        assert_eq!(sched_getattr(Tid(0)).unwrap().nice, 4);
    })
    .join()
    .unwrap();
}

fn set_policy(policy: Policy) {
    let current = sched_getattr(Tid(0)).unwrap();
    sched_setattr(Tid(0), &current.with_policy(policy)).unwrap();
    assert_eq!(sched_getattr(Tid(0)).unwrap().policy(), policy);
}

#[test]
fn threads_that_are_not_there() {
    fn check(errno: Option<i32>) {
        assert_eq!(errno, Some(libc::ESRCH))
    }

    let gone = Tid(0x7fff_fff0);
    check(sched_getaffinity(gone).unwrap_err().raw_os_error());
    check(sched_getattr(gone).unwrap_err().raw_os_error());
    check(
        sched_setattr(gone, &SchedAttr::default().with_policy(Policy::Idle))
            .unwrap_err()
            .raw_os_error(),
    );
}
