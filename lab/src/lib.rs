//! QEMU guests as hosts under test.
