//! Measurements, from inside a workload through pinload and from the host.
