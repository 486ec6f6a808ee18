//! Just enough PTX: the `.entry` names of a text and the sizes of their parameters.
//!
//! A module may hold any kernels; only those of `kernel.rs` can be launched.

/// The kernels a PTX text declares.
#[derive(Debug, Clone, Default)]
pub struct Module {
    /// In the order of the text.
    pub entries: Vec<Entry>,
}

/// One `.entry`.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Name of the entry.
    pub name: String,
    /// Parameters of the entry in order.
    pub parameters: Vec<Parameter>,
}

/// Where one parameter lies in the parameter block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Byte offset, aligned to the size.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

impl Module {
    /// Reads a PTX text. What is not an `.entry` is skipped, so any text gives a module.
    pub fn parse(text: &str) -> Self {
        let code: String = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or(""))
            .collect::<Vec<_>>()
            .join("\n");
        let entries = code
            .split(".entry")
            .skip(1)
            .filter_map(|after| {
                let after = after.trim_start();
                let end = after.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'))?;
                let (name, rest) = after.split_at(end);
                let list = rest.trim_start().strip_prefix('(').and_then(|rest| rest.split(')').next());
                Some(Entry { name: name.to_owned(), parameters: parameters(list.unwrap_or("")) })
            })
            .collect();
        Self { entries }
    }

    /// The entry of this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

fn parameters(list: &str) -> Vec<Parameter> {
    let mut offset = 0;
    list.split(',')
        .filter_map(|declaration| {
            let mut words = declaration.split_whitespace().skip_while(|word| *word != ".param").skip(1);
            let bits: usize = words.next()?.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()?;
            let size = (bits / 8).max(1);
            offset = usize::next_multiple_of(offset, size);
            let parameter = Parameter { offset, size };
            offset += size;
            Some(parameter)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_name_and_aligned_parameters() {
        let module = Module::parse(
            "// .entry not_this(\n.visible .entry fill(.param .u64 p,\n .param .u32 a, .param .u64 b)\n{ ret; }",
        );
        assert_eq!(module.entries.len(), 1);
        let offsets: Vec<usize> = module.entry("fill").unwrap().parameters.iter().map(|p| p.offset).collect();
        assert_eq!(offsets, [0, 8, 16]);
    }

    #[test]
    fn any_text_gives_a_module() {
        assert!(Module::parse("").entries.is_empty());
        assert!(Module::parse(".entry").entries.is_empty());
        assert!(Module::parse("\u{7f}ELF .entry (").entries.len() <= 1);
    }
}
