//! The arguments with which libvirt calls its hook.

use std::ffi::OsString;

use clap::Args;

/// `pinfold libvirt-hook`.
#[derive(Debug, Args)]
pub struct LibvirtHookArgs {
    /// Name of the domain
    #[arg(value_name = "DOMAIN", allow_hyphen_values = true)]
    pub domain: String,
    /// Operation: prepare, start, started, stopped, release, reconnect, …
    #[arg(value_name = "OPERATION")]
    pub operation: String,
    /// Phase: begin or end
    #[arg(value_name = "PHASE")]
    pub phase: String,
    /// Reason given by libvirt, or `-`
    #[arg(value_name = "EXTRA", allow_hyphen_values = true)]
    pub extra: Option<OsString>,
    /// What a later libvirt may add
    #[arg(hide = true)]
    pub more: Vec<OsString>,
    /// Read the plans from DIR: UUID.json or NAME.json, written by `pinfold plan --json`
    #[arg(long, value_name = "DIR", default_value = "/etc/pinfold/domains")]
    pub plans: String,
    /// Plan the domains of FILE when they start
    #[arg(long, value_name = "FILE", default_value = "/etc/pinfold/domains.toml")]
    pub domains: String,
    /// Read libvirt's PID files from DIR
    #[arg(long, value_name = "DIR", default_value = "/run/libvirt/qemu")]
    pub run_dir: String,
    /// Wait longer: libvirt does not wait for this process
    #[arg(long, hide = true)]
    pub late: bool,
}
