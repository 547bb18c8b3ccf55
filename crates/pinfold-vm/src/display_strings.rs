//! What messages and hints say about a hypervisor.

/// Words about a hypervisor in messages and hints.
#[derive(Debug, PartialEq, Eq)]
pub struct DisplayStrings {
    /// Its name.
    pub name: &'static str,
    /// Its control socket.
    pub socket: &'static str,
    /// The option of `pinfold` that takes this socket.
    pub option: &'static str,
    /// The query that reports the vCPUs.
    pub vcpu_query: &'static str,
    /// How a machine can be selected so that its monitor is queried.
    pub selectors: &'static str,
    /// How to have it name its threads.
    pub thread_names: &'static str,
    /// The options that Pinfold adds, shortened.
    pub added_options: &'static str,
    /// How to install it.
    pub install: &'static str,
    /// When it ends with exit code 0 at once.
    pub ends_at_once: &'static str,
    /// How a script passes the added options on.
    pub script: &'static str,
}

impl DisplayStrings {
    /// True if Pinfold connects to its control socket.
    #[must_use]
    pub fn has_socket(&self) -> bool {
        !self.option.is_empty()
    }
}
