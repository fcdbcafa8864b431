//! A process that serves one store over standard input and output. Each request and each answer is
//! a line of JSON. Progress and messages go to standard error, which the process shares with the
//! process that started it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::engine::{EngineKind, Named, Settings};
use crate::measure::{Measured, Spec};
use crate::stand::Stand;

/// The first request: the store and its rows. The answer to it is [`Ready`]. Each later request is
/// a [`Spec`], and the answer to it is a [`Measured`].
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

/// Runs the serving process: loads the store, then measures each requested [`Spec`] until the input
/// ends.
///
/// # Errors
/// Returns an error for a line that breaks the protocol, and any error of the store.
pub(crate) fn run() -> Result<()> {
    let mut lines = std::io::stdin().lock().lines();
    let Some(line) = lines.next() else { bail!("no line says which store to open") };
    let opening: Opening = serde_json::from_str(&line?).context("the first line")?;
    let (stand, load_s) = Stand::load(opening.engine, &opening.settings)?;
    answer(&Ready { configuration: stand.describe(), load_s })?;
    // The loop ends with the input.
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

/// The side that sends requests. Dropping the client ends the serving process.
pub(crate) struct Client {
    engine: EngineKind,
    child: Child,
    /// The standard input of the process. When the client closes it, the process ends.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Client {
    /// Starts a process and waits until it has loaded its store.
    ///
    /// # Errors
    /// Returns an error if the process cannot be started or fails. The message of the process is on
    /// standard error.
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

    /// Returns the store that the process serves.
    pub(crate) fn engine(&self) -> EngineKind {
        self.engine
    }

    /// Lets the process make one measurement.
    ///
    /// # Errors
    /// Returns an error if the process fails. The message of the process is on standard error.
    pub(crate) fn measure(&mut self, spec: &Spec) -> Result<Measured> {
        self.ask(spec)
    }

    fn ask<A: for<'de> Deserialize<'de>>(&mut self, question: &impl Serialize) -> Result<A> {
        let name = self.engine.name();
        let input = self.input.as_mut().context("the process is being ended")?;
        let mut line = serde_json::to_string(question)?;
        line.push('\n');
        // If the process has failed, this write fails too. The error below gives the exit status of
        // the process.
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
    /// Returns an error if the process failed at its exit.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.input = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "the process of {} ended with {status}", self.engine.name());
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Both calls do nothing after `finish`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
