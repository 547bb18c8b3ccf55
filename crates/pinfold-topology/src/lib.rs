//! Host to topology and findings, through hwloc and sysfs.
