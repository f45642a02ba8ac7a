//! What is done to a template's text before minijinja parses it.

/// Normalises line ends as Jinja2 does and turns `{% generation %}` blocks, which only mark the
/// assistant's tokens for training, into plain scopes. Lines keep their numbers.
pub(super) fn prepare(source: &str) -> Result<String, (usize, String)> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find('{') {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let length = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map(|end| end + 2),
            Some(b'{') => closing(tag, "}}"),
            Some(b'%') => closing(tag, "%}"),
            _ => Some(1),
        };
        // An unfinished tag is minijinja's to report, with its line.
        let length = length.unwrap_or(tag.len());
        let (tag, after) = tag.split_at(length);
        match block_name(tag) {
            Some("generation") => out.push_str(&tag.replacen("generation", "with", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            Some("raw") => {
                let end = after.find("endraw").map_or(after.len(), |end| end);
                out.push_str(tag);
                out.push_str(&after[..end]);
                rest = &after[end..];
                continue;
            }
            // Jinja2's template inheritance would read other files.
            Some(name @ ("include" | "import" | "from" | "extends")) => {
                let line = out.matches('\n').count() + 1;
                return Err((
                    line,
                    format!("`{name}` reads another file, which is not allowed"),
                ));
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Length of a tag up to and with its end, which is not looked for inside string literals.
fn closing(tag: &str, end: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, byte) in tag.bytes().enumerate().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if byte == b'\\' => escaped = true,
            Some(open) if byte == open => quote = None,
            Some(_) => {}
            None if byte == b'"' || byte == b'\'' => quote = Some(byte),
            None if tag.as_bytes()[at..].starts_with(end.as_bytes()) => return Some(at + 2),
            None => {}
        }
    }
    None
}

/// The first word of a block tag.
fn block_name(tag: &str) -> Option<&str> {
    let inside = tag.strip_prefix("{%")?;
    let inside = inside
        .strip_prefix(['-', '+'])
        .unwrap_or(inside)
        .trim_start();
    let end = inside
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(inside.len());
    (end > 0).then(|| &inside[..end])
}

#[cfg(test)]
mod tests {
    use super::prepare;

    #[test]
    fn generation_blocks_become_scopes() {
        let source = "a{%- generation -%}\r\n{{ '{% generation %}' }}{% endgeneration %}\rb";
        let expected = "a{%- with -%}\n{{ '{% generation %}' }}{% endwith %}\nb";
        assert_eq!(prepare(source).as_deref(), Ok(expected));
    }

    #[test]
    fn comments_and_raw_blocks_are_left_alone() {
        for same in [
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{{ \"}}'\" }}{ {x} {",
            "{% set x = 'a\\'%}' %}",
            "{{ unfinished",
            "é{",
        ] {
            assert_eq!(prepare(same).as_deref(), Ok(same));
        }
    }

    #[test]
    fn other_files_are_out_of_reach() {
        assert_eq!(prepare("\n{% include 'x' %}").unwrap_err().0, 2);
    }
}
