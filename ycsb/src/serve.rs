//! One store in a process of its own, led over its standard input and output: a line of JSON asks,
//! a line of JSON answers. Standard error stays the terminal's, for progress and messages.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::engine::{EngineKind, Named, Settings};
use crate::measure::{Measured, Spec};
use crate::stand::Stand;

/// The first line: which store, and its rows. A [`Spec`] a line follows, and a [`Measured`] answers
/// each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Opening {
    pub(crate) engine: EngineKind,
    pub(crate) settings: Settings,
}

/// The answer to an [`Opening`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) configuration: Named<String>,
    pub(crate) load_s: f64,
}

/// The process's side: loads, then measures what each line asks for until there are no more.
///
/// # Errors
/// Lines that do not follow this protocol; what the store reports.
pub(crate) fn run() -> Result<()> {
    let mut lines = std::io::stdin().lock().lines();
    let Some(line) = lines.next() else { bail!("no line says which store to open") };
    let opening: Opening = serde_json::from_str(&line?).context("the first line")?;
    let (stand, load_s) = Stand::load(opening.engine, &opening.settings)?;
    answer(&Ready { configuration: stand.describe(), load_s })?;
    // Ends with the input.
    for line in lines {
        let spec: Spec = serde_json::from_str(&line?).context("a measurement's line")?;
        answer(&stand.measure(&spec)?)?;
    }
    Ok(())
}

fn answer(answer: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// The other side. Dropping it ends the process.
pub(crate) struct Client {
    engine: EngineKind,
    child: Child,
    /// Closed to say that there is no more to do.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Client {
    /// Starts a process and has it load its store.
    ///
    /// # Errors
    /// It can't be started, or it failed; its own message is on standard error.
    pub(crate) fn start(opening: &Opening) -> Result<(Self, Ready)> {
        let program = std::env::current_exe().context("this program's own path")?;
        let mut child = Command::new(program)
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a process for a store")?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("the process's output")?;
        let output = BufReader::new(output);
        let mut client = Client { engine: opening.engine, child, input, output };
        let ready = client.ask(opening)?;
        Ok((client, ready))
    }

    /// The store.
    pub(crate) fn engine(&self) -> EngineKind {
        self.engine
    }

    /// One measurement.
    ///
    /// # Errors
    /// The process failed; its own message is on standard error.
    pub(crate) fn measure(&mut self, spec: &Spec) -> Result<Measured> {
        self.ask(spec)
    }

    fn ask<A: for<'de> Deserialize<'de>>(&mut self, question: &impl Serialize) -> Result<A> {
        let name = self.engine.name();
        let input = self.input.as_mut().context("the process is being ended")?;
        let mut line = serde_json::to_string(question)?;
        line.push('\n');
        // A process that has failed closed its end: what it has to say comes from its status below.
        let _ = input.write_all(line.as_bytes()).and_then(|()| input.flush());
        let mut answer = String::new();
        self.output.read_line(&mut answer).with_context(|| format!("hearing from {name}"))?;
        if answer.is_empty() {
            let status = self.child.wait()?;
            bail!("the process of {name} failed ({status}); its message is above");
        }
        serde_json::from_str(&answer).with_context(|| format!("{name} answered {answer:?}"))
    }

    /// Ends the process.
    ///
    /// # Errors
    /// It failed on its way out.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.input = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "the process of {} ended with {status}", self.engine.name());
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // After `finish` both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
