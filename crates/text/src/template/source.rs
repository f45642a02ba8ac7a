//! What is done to a template's text before minijinja parses it.
//!
//! minijinja bounds the nesting of brackets and blocks, but builds a chain of operators, or a
//! value that a loop wraps again and again, as deep as the template says, and then walks it by
//! recursion. So a tag's length is bounded here, and what `set` stores goes through a filter that
//! bounds its depth (see `stored.rs`).

/// Most words and signs in one tag, string literals not counted. The longest tag of some seventy
/// published templates has 55.
const MAX_TAG_WORDS: usize = 1000;
/// Most `elif` branches in a template; each nests the rest in the one before.
const MAX_ELIFS: usize = 1000;

/// Line (from 1) and cause.
type Refusal = (usize, String);

/// Prepares a template for minijinja. Lines keep their numbers.
///
/// Line ends become `\n`, as in Jinja2. `{% generation %}` blocks, which only mark the assistant's
/// tokens for training, become plain scopes. Tags that read other templates are refused.
pub(super) fn prepare(source: &str) -> Result<String, Refusal> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    let mut elifs = 0;
    while let Some(at) = rest.find('{') {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let line = || out.matches('\n').count() + 1;
        let length = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map(|end| end + 2),
            Some(b'{') => closing(tag, "}}").map_err(|cause| (line(), cause))?,
            Some(b'%') => closing(tag, "%}").map_err(|cause| (line(), cause))?,
            _ => Some(1),
        };
        // An unfinished tag is minijinja's to report, with its line.
        let (tag, after) = tag.split_at(length.unwrap_or(tag.len()));
        rest = after;
        match block_name(tag) {
            Some("generation") => out.push_str(&tag.replacen("generation", "with", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            Some("set") => out.push_str(&stored(tag)),
            Some("raw") => {
                let end = after.find("endraw").unwrap_or(after.len());
                out.push_str(tag);
                out.push_str(&after[..end]);
                rest = &after[end..];
            }
            Some(name @ ("include" | "import" | "from" | "extends" | "block")) => {
                return Err((
                    line(),
                    format!("`{name}` joins several templates, not allowed here"),
                ));
            }
            name => {
                elifs += usize::from(name == Some("elif"));
                if elifs > MAX_ELIFS {
                    return Err((line(), format!("more than {MAX_ELIFS} `elif`")));
                }
                out.push_str(tag);
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Length of a tag up to and with its end, which is not looked for inside string literals. `None`
/// if it has none.
fn closing(tag: &str, end: &str) -> Result<Option<usize>, String> {
    let mut words = 0;
    let mut in_word = false;
    for (at, c) in outside_strings(tag).skip(2) {
        if tag[at..].starts_with(end) {
            return Ok(Some(at + end.len()));
        }
        let word = c.is_alphanumeric() || c == '_';
        let goes_on = c.is_whitespace() || (word && in_word);
        words += usize::from(!goes_on);
        in_word = word;
        if words > MAX_TAG_WORDS {
            return Err(format!(
                "the tag has more than {MAX_TAG_WORDS} words and signs"
            ));
        }
    }
    Ok(None)
}

/// The characters of a tag that are not inside a string literal, with their positions.
fn outside_strings(tag: &str) -> impl Iterator<Item = (usize, char)> {
    let mut quote = None;
    let mut escaped = false;
    tag.char_indices().filter(move |&(_, c)| match quote {
        Some(_) if escaped => {
            escaped = false;
            false
        }
        Some(open) => {
            escaped = c == '\\';
            if c == open {
                quote = None;
            }
            false
        }
        None if c == '"' || c == '\'' => {
            quote = Some(c);
            false
        }
        None => true,
    })
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

/// `{% set target = value %}` with its value sent through the filter `stored`, or `attached` where
/// it becomes an attribute of a namespace. Other forms of `set` stay as they are.
fn stored(tag: &str) -> String {
    let mut depth = 0_usize;
    let assignment = outside_strings(tag).find(|&(_, c)| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        // The tag's own brace is still open.
        depth == 1 && c == '='
    });
    let body = tag
        .strip_suffix("%}")
        .map(|body| body.strip_suffix(['-', '+']).unwrap_or(body));
    match (assignment, body) {
        (Some((at, _)), Some(body)) if at < body.len() => {
            let (target, value) = (&tag[..at], &body[at + 1..]);
            let filter = if target.contains('.') {
                "attached"
            } else {
                "stored"
            };
            format!("{target}= ({value}) | {filter} {}", &tag[body.len()..])
        }
        _ => tag.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_ELIFS, MAX_TAG_WORDS, prepare};

    #[test]
    fn generation_blocks_become_scopes() {
        let source = "a{%- generation -%}\r\n{{ '{% generation %}' }}{% endgeneration %}\rb";
        let expected = "a{%- with -%}\n{{ '{% generation %}' }}{% endwith %}\nb";
        assert_eq!(prepare(source).as_deref(), Ok(expected));
    }

    #[test]
    fn comments_raw_blocks_and_other_tags_are_left_alone() {
        for same in [
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{{ \"}}'\" }}{ {x} {",
            "{% set x %}a = b{% endset %}",
            "{% set x",
            "{% if a == b %}{% endif %}",
            "{{ unfinished",
            "é{",
        ] {
            assert_eq!(prepare(same).as_deref(), Ok(same));
        }
    }

    #[test]
    fn what_is_set_is_checked() {
        let cases = [
            (
                "{% set x = 'a\\'%}' -%}",
                "{% set x = ( 'a\\'%}' ) | stored -%}",
            ),
            (
                "{%- set ns.x=a == b%}",
                "{%- set ns.x= (a == b) | attached %}",
            ),
            (
                "{% set a, b = 1, '=' %}",
                "{% set a, b = ( 1, '=' ) | stored %}",
            ),
            (
                "{% set x =\n {'a':\n f(b=1)} %}",
                "{% set x = (\n {'a':\n f(b=1)} ) | stored %}",
            ),
        ];
        for (source, expected) in cases {
            assert_eq!(prepare(source).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn long_chains_are_refused() {
        let tag = |words: usize| format!("\n{{{{ {}x }}}}", "-".repeat(words - 1));
        assert!(prepare(&tag(MAX_TAG_WORDS)).is_ok());
        assert_eq!(prepare(&tag(MAX_TAG_WORDS + 1)).unwrap_err().0, 2);
        let branches = |count: usize| "{% elif x %}".repeat(count);
        assert!(prepare(&branches(MAX_ELIFS)).is_ok());
        assert!(prepare(&branches(MAX_ELIFS + 1)).is_err());
    }

    #[test]
    fn other_files_are_out_of_reach() {
        assert_eq!(prepare("\n{% include 'x' %}").unwrap_err().0, 2);
    }
}
