//! The placement that a domain asks for in its metadata, to be planned when it starts.
//!
//! ```xml
//! <metadata>
//!   <pinfold:placement xmlns:pinfold='urn:pinfold:placement' strategy='balanced' prefer='cache'/>
//! </metadata>
//! ```
//! The element with `pins` is the mark of a plan that was written into the file
//! ([`crate::definition`]): it asks for nothing.

use roxmltree::Node;

use super::{DomainError, error_at, is_libvirt_element, parse};
use crate::strategies::definition::NAMESPACE;

const NAME: &str = "placement";
const STRATEGY: &str = "strategy";
const PREFER: &str = "prefer";
const EMULATOR: &str = "emulator";
const MARK: &str = "pins";

const FORM: &str = "write <placement xmlns='urn:pinfold:placement' strategy='…' prefer='…' \
                    emulator='…'/>, in which each attribute may be omitted";

/// What the metadata say, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementMetadata {
    /// The strategy, if given.
    pub strategy: Option<String>,
    /// Which cores are used first, if given.
    pub prefer: Option<String>,
    /// Where the emulator runs, if given.
    pub emulator: Option<String>,
    /// Line number of the element, from 1.
    pub line: u32,
}

impl PlacementMetadata {
    /// The attributes of the element.
    pub const ATTRIBUTES: [&str; 3] = [STRATEGY, PREFER, EMULATOR];

    /// Parses the metadata of a domain file; `None` if they ask for no placement.
    ///
    /// # Errors
    /// [`DomainError`] with the position: not well formed, a second element, an unknown element or
    /// attribute in Pinfold's namespace, content.
    pub fn read(xml: &str) -> Result<Option<Self>, DomainError> {
        let document = parse(xml)?;
        let metadata = document
            .root_element()
            .children()
            .filter(|child| is_libvirt_element(child, "metadata"));
        let own = metadata
            .flat_map(|metadata| metadata.children())
            .filter(|child| child.tag_name().namespace() == Some(NAMESPACE));
        let mut found: Option<Self> = None;
        for element in own {
            if element.tag_name().name() != NAME {
                let name = element.tag_name().name();
                return Err(faulty(element, format!("<{name}> of Pinfold is not known")));
            }
            if element.has_attribute(MARK) {
                continue;
            }
            if found.is_some() {
                return Err(faulty(element, "a second <placement> of Pinfold".to_owned()));
            }
            found = Some(request(element)?);
        }
        Ok(found)
    }
}

fn request(element: Node<'_, '_>) -> Result<PlacementMetadata, DomainError> {
    let names = element.attributes().map(|attribute| attribute.name());
    let strange = names.filter(|name| !PlacementMetadata::ATTRIBUTES.contains(name));
    let strange: Vec<String> = strange.map(|name| format!("{name:?}")).collect();
    if !strange.is_empty() {
        let text = format!("<placement> of Pinfold has no attribute {}", strange.join(", "));
        return Err(faulty(element, text));
    }
    if let Some(child) = element.children().find(Node::is_element) {
        return Err(faulty(child, "<placement> of Pinfold has no content".to_owned()));
    }
    Ok(PlacementMetadata {
        strategy: value_of(STRATEGY, element),
        prefer: value_of(PREFER, element),
        emulator: value_of(EMULATOR, element),
        line: element.document().text_pos_at(element.range().start).row,
    })
}

fn value_of(name: &str, element: Node<'_, '_>) -> Option<String> {
    element.attribute(name).map(str::to_owned)
}

fn faulty(element: Node<'_, '_>, why: String) -> DomainError {
    DomainError { hint: Some(FORM), ..error_at(element, why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_may_be_omitted_and_marks_ask_for_nothing() {
        let full = "<p:placement xmlns:p='urn:pinfold:placement' strategy='scatter' prefer='cache' \
                    emulator='apart'/>";
        let all = read(full).unwrap().unwrap();
        assert_eq!(all.strategy.as_deref(), Some("scatter"));
        assert_eq!(all.prefer.as_deref(), Some("cache"));
        assert_eq!(all.emulator.as_deref(), Some("apart"));
        assert_eq!(all.line, 2);
        let empty = read("<placement xmlns='urn:pinfold:placement'/>").unwrap();
        assert_eq!(empty, Some(PlacementMetadata { line: 2, ..PlacementMetadata::default() }));
        for nothing in [
            "",
            "<placement xmlns='urn:other' strategy='x'/>",
            "<p:placement xmlns:p='urn:pinfold:placement' strategy='scatter' pins='0 4 1-3'/>",
        ] {
            assert_eq!(read(nothing).unwrap(), None, "{nothing}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        let space = "xmlns:p='urn:pinfold:placement'";
        for (metadata, expected) in [
            (format!("<p:place {space}/>"), "line 2, column 1: <place> of Pinfold is not known"),
            (
                format!("<p:placement {space}\nstrategi='x'/>"),
                "line 2, column 1: <placement> of Pinfold has no attribute \"strategi\"",
            ),
            (
                format!("<p:placement {space}>\n<p:x/></p:placement>"),
                "line 3, column 1: <placement> of Pinfold has no content",
            ),
            (
                format!("<p:placement {space}/>\n<p:placement {space}/>"),
                "line 3, column 1: a second <placement> of Pinfold",
            ),
        ] {
            let error = read(&metadata).unwrap_err();
            assert_eq!(error.to_string(), expected);
            assert!(error.hint.is_some());
        }
    }

    fn read(metadata: &str) -> Result<Option<PlacementMetadata>, DomainError> {
        PlacementMetadata::read(&format!("<domain><metadata>\n{metadata}</metadata></domain>"))
    }
}
