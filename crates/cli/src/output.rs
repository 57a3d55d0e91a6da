//! The one place that prints: data to standard output, words to standard error, and lines that are drawn
//! over as things change.

use std::io::{self, IsTerminal as _, Write as _};

use anstyle::{AnsiColor, Style};

/// Writes data to standard output.
pub(crate) fn data(bytes: &[u8]) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Says something to whoever watches.
pub(crate) fn say(line: &str) {
    // Whoever closed standard error does not want to know.
    _ = writeln!(anstream::stderr().lock(), "{line}");
}

/// Says what went wrong.
pub(crate) fn complain(error: &str) {
    let style = AnsiColor::Red.on_default().bold();
    say(&format!("{style}error:{style:#} {error}"));
}

/// True if whoever read our output has left, which is no failure of ours.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    error.chain().any(broken)
}

/// `text` in `style`, padded to `width` before it is styled.
pub(crate) fn styled(text: &str, style: Style, width: usize) -> String {
    format!("{style}{text:<width$}{style:#}")
}

/// Lines on a terminal that are drawn again in place. Silent when standard error is no terminal.
#[derive(Debug)]
pub(crate) struct Canvas {
    is_terminal: bool,
    drawn: usize,
}

impl Canvas {
    pub(crate) fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), drawn: 0 }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Draws `lines` over those drawn before. They must not be wider than the terminal.
    pub(crate) fn draw(&mut self, lines: &[String]) {
        if !self.is_terminal {
            return;
        }
        let mut text = String::new();
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.drawn));
        }
        for line in lines {
            text.push_str(&format!("{line}\x1b[K\n"));
        }
        text.push_str("\x1b[J");
        self.drawn = lines.len();
        // Whoever closed standard error does not want to know.
        let mut out = anstream::stderr().lock();
        _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

/// How many characters fit in a line of the terminal.
pub(crate) fn terminal_width() -> usize {
    const UNKNOWN: usize = 80;
    terminal_size::terminal_size_of(io::stderr()).map_or(UNKNOWN, |(width, _)| usize::from(width.0))
}

/// `text`, cut to `width` characters, with a mark where it was cut.
pub(crate) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_fits_is_not_cut() {
        assert_eq!(fit("größe", 5), "größe");
        assert_eq!(fit("größen", 5), "größ…");
        assert_eq!(fit("x", 0), "…");
    }
}
