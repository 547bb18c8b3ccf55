//! Whether a domain file describes a Windows guest, and the sockets that it uses.

use roxmltree::Node;

/// Certainty that the guest runs Windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Windows {
    /// No sign of Windows.
    No,
    /// Its clock runs in local time, as Windows expects.
    Likely,
    /// The file names Windows, or has settings that only Windows uses.
    Yes,
}

/// Windows Pro uses two sockets, Home one.
const MOST_OF_DESKTOP: u32 = 2;

impl Windows {
    /// The signs of Windows in a file with this root element.
    pub fn from_root(root: Node<'_, '_>) -> Self {
        let clock = child(root, "clock");
        let hyperv = child(root, "features").and_then(|features| child(features, "hyperv"));
        let enlightened = hyperv.is_some_and(|hyperv| {
            hyperv.attribute("mode") == Some("passthrough")
                || hyperv.children().any(|node| node.attribute("state") == Some("on"))
        });
        let timers = clock.into_iter().flat_map(|clock| clock.children());
        let mut timers = timers.filter(|node| node.has_tag_name("timer"));
        let timer = timers.find(|timer| timer.attribute("name") == Some("hypervclock"));
        let is_present = timer.map(|timer| timer.attribute("present") != Some("no"));
        let is_local = clock.and_then(|clock| clock.attribute("offset")) == Some("localtime");
        match (system(root), is_local) {
            (Some(id), _) if id.contains("microsoft.com/") => Self::Yes,
            (Some(_), _) => Self::No,
            (None, _) if enlightened || is_present == Some(true) => Self::Yes,
            // Both signs together: a Windows guest whose Hyper-V clock was disabled.
            (None, true) if is_present == Some(false) => Self::Yes,
            (None, true) => Self::Likely,
            (None, false) => Self::No,
        }
    }
}

/// The number of sockets that the guest's system uses; `None` if it uses all.
pub fn most_sockets(root: Node<'_, '_>) -> Option<u32> {
    // Server editions are named after their year: `win/2k22`.
    let is_server = system(root).is_some_and(|id| id.contains("/win/2k"));
    (Windows::from_root(root) == Windows::Yes && !is_server).then_some(MOST_OF_DESKTOP)
}

/// The guest's system, as libosinfo identifies it.
fn system<'a>(root: Node<'a, '_>) -> Option<&'a str> {
    let mut systems = root.descendants().filter(|node| {
        let namespace = node.tag_name().namespace();
        node.has_tag_name("os") && namespace.is_some_and(|name| name.contains("libosinfo"))
    });
    systems.find_map(|node| node.attribute("id"))
}

fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain_file::parse;

    #[test]
    fn desktop_editions_use_two_sockets() {
        check("http://microsoft.com/win/11", "", Some(2));
        check("http://microsoft.com/win/2k22", "", None);
        check("http://debian.org/debian/12", "<hyperv mode='passthrough'/>", None);
        let plain = "<domain><features><hyperv mode='passthrough'/></features></domain>";
        let document = parse(plain).expect("a file");
        assert_eq!(most_sockets(document.root_element()), Some(2));
    }

    fn check(system: &str, features: &str, expected: Option<u32>) {
        let xml = format!(
            "<domain><metadata><o:libosinfo xmlns:o='http://libosinfo.org/x'>\
                 <o:os id='{system}'/></o:libosinfo></metadata>\
                 <features>{features}</features></domain>"
        );
        let document = parse(&xml).expect("a file");
        assert_eq!(most_sockets(document.root_element()), expected, "{xml}");
    }
}
