//! Settings that another program manages: libvirt for its domains, systemd for its units.
//!
//! Such a program rewrites its values in the kernel whenever it acts (libvirt at a hotplug, systemd
//! at a reload). A direct change would not last, so Pinfold requests it from that program.

use std::fmt;

/// A program that manages settings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum SettingManager {
    /// libvirt; objects are domains, identified by UUID.
    Libvirt {
        /// URI of the connection, such as `qemu:///system`.
        uri: String,
    },
    /// libvirt as its daemon writes the status of a running domain to a file; can only be read.
    /// Objects are domains, identified by UUID.
    LibvirtStatus {
        /// Path of the file, such as `/run/libvirt/qemu/web.xml`.
        file: String,
    },
    /// systemd as the system manager; objects are units, identified by name.
    Systemd,
}

/// How long a setting remains valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Lifetime {
    /// Until the object stops or the host is rebooted.
    Running,
    /// Stored on disk in the object's definition: also after a restart.
    Lasting,
}

/// A setting of an object that another program manages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Setting {
    /// The program that manages it.
    pub keeper: SettingManager,
    /// The object: a domain's UUID or a unit's name.
    pub object: String,
    /// The key: `vcpupin 0`, `emulatorpin`, `iothreadpin 1`, `numatune`; `AllowedCPUs`.
    pub key: String,
    /// Whether it applies to the running object or to its definition.
    pub lifetime: Lifetime,
}

impl fmt::Display for SettingManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SettingManager::Libvirt { .. } | SettingManager::LibvirtStatus { .. } => "libvirt",
            SettingManager::Systemd => "systemd",
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
