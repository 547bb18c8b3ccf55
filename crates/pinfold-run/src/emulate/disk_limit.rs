//! The disk limit of a platform file on this host.

use pinfold_emulate::{Hierarchies, Node};
use pinfold_host::{LiveHost, files};
use pinfold_model::{Method, PlatformVnode};

use crate::{Failure, inputs};

/// Makes the folder of a disk limit absolute, and checks that its disk can be limited. The error has
/// the key at fault.
pub(super) fn find_disk(
    vnode: &mut PlatformVnode,
    host: &LiveHost,
) -> Result<(), (&'static str, Failure)> {
    let Some(limit) = &mut vnode.disk else { return Ok(()) };
    let key = match (limit.path.as_str(), limit.bytes) {
        (".", Some(_)) => "disk",
        (".", None) => "iops",
        (_, _) => "disk-path",
    };
    limit.path = files::canonical(&limit.path).map_err(|error| {
        let failure = inputs::input_failure(&error);
        let message = format!("vnode {}: {}", vnode.name, failure.message);
        let hint = Some("name an existing folder on the disk".to_owned());
        (key, Failure { message, hint, ..failure })
    })?;
    let disk = Some(limit.clone());
    let node = Node { disk, ..Node::new(&vnode.name, Method::Stall, Vec::new()) };
    let hierarchies = Hierarchies::find(host).map_err(|error| (key, Failure::from(error)))?;
    pinfold_emulate::limited_disk(host, &hierarchies, &node)
        .map(|_| ())
        .map_err(|error| (key, Failure::from(error)))
}
