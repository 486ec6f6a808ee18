//! Paths that a source text names, and the modules that it declares.

/// Paths and modules of one file.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Paths into the crate, from its root.
    pub(super) paths: Vec<NamedPath>,
    /// Modules that are compiled for tests only, from the crate's root.
    pub(super) tests: Vec<Vec<String>>,
}

/// A path into the crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedPath {
    /// Names from the crate's root on.
    pub(super) segments: Vec<String>,
    /// Name that it has where it is imported: its last, or the one after `as`.
    pub(super) name: String,
}

/// Paths and modules in the text of the module `module`.
pub(super) fn paths_of(module: &[String], text: &str) -> Source {
    let tokens = tokens(text);
    let token = |at: usize| tokens.get(at).copied().unwrap_or_default();
    let children: Vec<&str> = (0..tokens.len())
        .filter(|&at| token(at) == "mod" && token(at + 2) == ";")
        .map(|at| token(at + 1))
        .collect();
    let mut source = Source::default();
    // Modules that are written inside this file, with the depth of their braces.
    let mut inline: Vec<(&str, usize)> = Vec::new();
    let (mut at, mut depth) = (0, 0);
    while at < tokens.len() {
        let start = token(at);
        match start {
            "#" if is_for_tests(&tokens[at..]) => {
                let end = end_of_item(&tokens, at);
                let declared = (at..end).find(|&at| token(at) == "mod" && token(at + 2) == ";");
                if let Some(declared) = declared {
                    source.tests.push([module, &[token(declared + 1).to_owned()]].concat());
                }
                at = end;
                continue;
            }
            "mod" if token(at + 2) == "{" => inline.push((token(at + 1), depth)),
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                inline.pop_if(|(_, outer)| *outer == depth);
            }
            _ if token(at + 1) == "::" && (at == 0 || token(at - 1) != "::") => {
                let inner = inline.iter().map(|(name, _)| (*name).to_owned());
                let mut prefix: Vec<String> = module.iter().cloned().chain(inner).collect();
                let known = match start {
                    "crate" => {
                        prefix.clear();
                        true
                    }
                    "self" => true,
                    "super" => prefix.pop().is_some(),
                    _ => {
                        prefix.push(start.to_owned());
                        children.contains(&start)
                    }
                };
                if known {
                    at = tree(&tokens, at + 2, prefix, &mut source.paths);
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    source
}

/// Reads a path, or a tree of paths in braces, that goes on at `at` after `prefix`; returns where it ends.
fn tree(tokens: &[&str], mut at: usize, mut prefix: Vec<String>, paths: &mut Vec<NamedPath>) -> usize {
    let token = |at: usize| tokens.get(at).copied().unwrap_or_default();
    loop {
        match token(at) {
            "{" => {
                at += 1;
                while !matches!(token(at), "}" | "") {
                    at = tree(tokens, at, prefix.clone(), paths);
                    if token(at) == "," {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "super" => drop(prefix.pop()),
            "self" => {}
            name if name.starts_with(is_in_name) => prefix.push(name.to_owned()),
            // A glob, or the `<` of a type's arguments.
            other => {
                paths.push(NamedPath { name: String::new(), segments: prefix });
                return at + usize::from(other == "*" || other == "<");
            }
        }
        at += 1;
        if token(at) == "::" {
            at += 1;
            continue;
        }
        let alias = token(at) == "as";
        let name = if alias { token(at + 1) } else { prefix.last().map_or("", String::as_str) };
        paths.push(NamedPath { name: name.to_owned(), segments: prefix });
        return at + if alias { 2 } else { 0 };
    }
}

/// Whether an attribute begins here that leaves its item to tests.
fn is_for_tests(tokens: &[&str]) -> bool {
    let attribute = tokens.split(|token| *token == "]").next().unwrap_or_default();
    attribute.get(1..4) == Some(&["[", "cfg", "("])
        && attribute.contains(&"test")
        && !attribute.contains(&"not")
        && !attribute.contains(&"any")
}

/// Index after the item whose first attribute begins at `at`: after its `;`, or after its braces.
fn end_of_item(tokens: &[&str], mut at: usize) -> usize {
    let mut depth = 0;
    while at < tokens.len() {
        match tokens[at] {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
        at += 1;
    }
    at
}

fn is_in_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Names, `::` and single characters of a text, without comments, strings, characters and lifetimes.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = raw_string(rest).or_else(|| string(rest)).or_else(|| quoted(rest)) {
            length
        } else {
            let length = match first {
                _ if is_in_name(first) => rest.find(|character| !is_in_name(character)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            if !first.is_whitespace() {
                tokens.push(&rest[..length]);
            }
            length
        };
        rest = &rest[length..];
    }
    tokens
}

/// Length of the raw string at the start of a text.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.strip_prefix('r').or_else(|| text.strip_prefix("br"))?;
    let count = hashes.find(|character| character != '#')?;
    let inside = hashes[count..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(count));
    let begin = text.len() - inside.len();
    Some(inside.find(&end).map_or(text.len(), |at| begin + at + end.len()))
}

/// Length of the string at the start of a text.
fn string(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('"')?;
    let mut escaped = false;
    let end = inside.find(|character| {
        let ends = character == '"' && !escaped;
        escaped = character == '\\' && !escaped;
        ends
    });
    Some(end.map_or(text.len(), |end| end + 2))
}

/// Length of the character or lifetime at the start of a text.
fn quoted(text: &str) -> Option<usize> {
    let mut inside = text.strip_prefix('\'')?.char_indices();
    match inside.next()?.1 {
        '\\' => text[3..].find('\'').map(|end| end + 4),
        _ => match inside.next()? {
            (at, '\'') => Some(at + 2),
            _ => Some(1 + text[1..].find(|character| !is_in_name(character)).unwrap_or(text.len() - 1)),
        },
    }
}
