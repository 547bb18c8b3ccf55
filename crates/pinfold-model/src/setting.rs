//! Values that another program keeps for the host: libvirt for its domains, systemd for its units.
//!
//! Such a program writes its values into the kernel again whenever it acts (libvirt at a
//! hotplug, systemd at a reload), so a change behind its back does not last: it is asked to
//! make the change itself.

use std::fmt;

/// A program that keeps settings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keeper {
    /// libvirt; objects are domains by their UUID.
    Libvirt {
        /// URI of the connection, such as `qemu:///system`.
        uri: String,
    },
    /// systemd as the manager of the whole host; objects are units by name.
    Systemd,
}

/// How long a setting holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lifetime {
    /// Until the object ends or the host is restarted.
    Running,
    /// In the object's definition, on disk: after a restart too.
    Lasting,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Setting {
    /// Who keeps it.
    pub keeper: Keeper,
    /// Of what: a domain's UUID, a unit's name.
    pub object: String,
    /// Which: `vcpupin 0`, `emulatorpin`, `iothreadpin 1`, `numatune`; `AllowedCPUs`.
    pub key: String,
    /// Of the object as it runs, or of its definition.
    pub lifetime: Lifetime,
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Keeper::Libvirt { .. } => "libvirt",
            Keeper::Systemd => "systemd",
        })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keeper, object, key, lifetime } = self;
        match lifetime {
            Lifetime::Running => write!(f, "{key} of {object} ({keeper})"),
            Lifetime::Lasting => write!(f, "{key} in the definition of {object} ({keeper})"),
        }
    }
}
