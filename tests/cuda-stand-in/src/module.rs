//! PTX text to kernels.
//!
//! Whatever is not understood is an error that names the line.

use std::{collections::HashMap, fmt};

use crate::instruction::{Instruction, Op, Opcode, Operand, Special, Type};

/// Where the first byte of constants is. Windows of addresses lie apart, so that one that strays is found.
pub const CONSTANTS: u64 = 0x0200_0000;
/// Where the first byte of a block's shared memory is.
pub const SHARED: u64 = 0x0100_0000;

/// Everything that a PTX text holds.
#[derive(Debug, Default)]
pub struct Module {
    /// Of the PTX language, in tenths: 60 for 6.0.
    pub version: u32,
    /// The least compute capability, in tenths: 70 for `sm_70`.
    pub target: u32,
    pub constants: Vec<u8>,
    pub kernels: HashMap<String, Kernel>,
    symbols: HashMap<String, u64>,
}

/// One entry point.
#[derive(Debug, Default)]
pub struct Kernel {
    pub name: String,
    /// Offset and size of each parameter.
    pub parameters: Vec<(usize, usize)>,
    pub parameter_bytes: usize,
    /// The most threads that a block may have, if it says so.
    pub max_threads: Option<u32>,
    pub shared_bytes: usize,
    /// The type of each register.
    pub registers: Vec<Type>,
    pub code: Vec<Instruction>,
}

/// What is wrong with a PTX text, and in which line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid {
    pub line: usize,
    pub what: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX line {}: {}", self.line, self.what)
    }
}

impl Module {
    /// Reads a whole text.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let mut module = Self::default();
        let mut lines = Lines::of(text);
        while let Some((line, text)) = lines.next() {
            module.top(line, &text, &mut lines).map_err(|what| Invalid { line, what })?;
        }
        if module.version == 0 || module.target == 0 {
            return Err(Invalid { line: 1, what: ".version or .target is missing".to_owned() });
        }
        Ok(module)
    }

    fn top(&mut self, line: usize, text: &str, lines: &mut Lines) -> Result<(), String> {
        let mut words = text.split_whitespace();
        match words.next().unwrap_or_default() {
            ".version" => {
                let version = words.next().and_then(|v| v.replace('.', "").parse().ok());
                self.version = version.ok_or("unreadable version")?;
            }
            ".target" => {
                let target = words.next().and_then(|v| v.strip_prefix("sm_")?.parse().ok());
                self.target = target.ok_or("unreadable target")?;
            }
            ".address_size" if words.next() == Some("64") => {}
            ".const" => self.constant(text)?,
            ".shared" => return Err("shared memory outside of a kernel".to_owned()),
            ".visible" | ".entry" => {
                let kernel = Reader::new(self).kernel(line, text, lines)?;
                self.kernels.insert(kernel.name.clone(), kernel);
            }
            other => return Err(format!("unknown directive '{other}'")),
        }
        Ok(())
    }

    /// `.const .align 8 .b8 NAME[192] = {1, 2, 3};`
    fn constant(&mut self, text: &str) -> Result<(), String> {
        let (declared, values) = text.split_once('=').ok_or("constants without values")?;
        let array = Array::parse(declared)?;
        while !self.constants.len().is_multiple_of(array.align) {
            self.constants.push(0);
        }
        self.symbols.insert(array.name, CONSTANTS + self.constants.len() as u64);
        let values = values.trim().trim_end_matches(';').trim_matches(['{', '}', ' ']);
        let start = self.constants.len();
        for value in values.split(',') {
            let value = number(value.trim()).ok_or("unreadable constant")?;
            self.constants.extend_from_slice(&value.to_le_bytes()[..array.of.bytes()]);
        }
        self.constants.resize(start + array.length * array.of.bytes(), 0);
        Ok(())
    }
}

/// `.shared .align 4 .b8 NAME[192]`
struct Array {
    name: String,
    of: Type,
    length: usize,
    align: usize,
}

impl Array {
    fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace().skip(1).peekable();
        let mut align = 1;
        if words.next_if_eq(&".align").is_some() {
            align = words.next().and_then(|word| word.parse().ok()).ok_or("unreadable alignment")?;
        }
        let of = words
            .next()
            .and_then(|word| Type::parse(word.strip_prefix('.')?))
            .ok_or("unknown element type")?;
        let rest: String = words.collect();
        let (name, length) = rest.split_once('[').ok_or("not an array")?;
        let length = length.trim_end_matches([']', ';', ' ']).parse().map_err(|_| "unreadable length")?;
        Ok(Self { name: name.to_owned(), of, length, align })
    }
}

/// The lines of a text that say something, without comments, with their numbers; cut so that none has two statements.
struct Lines {
    rest: std::vec::IntoIter<(usize, String)>,
}

impl Lines {
    fn of(text: &str) -> Self {
        let mut in_comment = false;
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let kept = without_comments(line, &mut in_comment);
            let mut rest = kept.trim();
            while !rest.is_empty() {
                // A brace that begins a line is that of a scope; others belong to a statement.
                let end = if rest.starts_with(['{', '}']) {
                    1
                } else {
                    rest.find(';').map_or(rest.len(), |at| at + 1)
                };
                let (statement, after) = rest.split_at(end);
                lines.push((number + 1, statement.to_owned()));
                rest = after.trim_start();
            }
        }
        Self { rest: lines.into_iter() }
    }

    fn next(&mut self) -> Option<(usize, String)> {
        self.rest.next()
    }
}

fn without_comments(line: &str, in_comment: &mut bool) -> String {
    let mut kept = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        if *in_comment {
            let Some((_, after)) = rest.split_once("*/") else { break };
            (*in_comment, rest) = (false, after);
        } else if let Some((before, after)) = rest.split_once("/*") {
            kept.push_str(before);
            (*in_comment, rest) = (true, after);
        } else {
            kept.push_str(rest);
            break;
        }
    }
    kept.split("//").next().unwrap_or_default().to_owned()
}

/// Reads one kernel.
struct Reader<'a> {
    module: &'a Module,
    kernel: Kernel,
    registers: HashMap<String, u16>,
    /// For each scope that is open, the names that it declared, and what they meant outside.
    scopes: Vec<Vec<(String, Option<u16>)>>,
    parameters: HashMap<String, u64>,
    shared: HashMap<String, u64>,
    labels: HashMap<String, usize>,
    /// The branches, and the labels that they go to.
    branches: Vec<(usize, String)>,
}

impl<'a> Reader<'a> {
    fn new(module: &'a Module) -> Self {
        Self {
            module,
            kernel: Kernel::default(),
            registers: HashMap::new(),
            scopes: Vec::new(),
            parameters: HashMap::new(),
            shared: HashMap::new(),
            labels: HashMap::new(),
            branches: Vec::new(),
        }
    }

    fn kernel(mut self, line: usize, first: &str, lines: &mut Lines) -> Result<Kernel, String> {
        let mut head = first.to_owned();
        while !head.ends_with('{') {
            let (_, next) = lines.next().ok_or("a kernel without a body")?;
            head.push(' ');
            head.push_str(&next);
        }
        self.head(&head)?;
        loop {
            let (at, text) = lines.next().ok_or_else(|| format!("the kernel at line {line} does not end"))?;
            if text == "}" && self.scopes.is_empty() {
                break;
            }
            self.statement(at, &text).map_err(|what| format!("line {at}: {what}"))?;
        }
        for (at, label) in &self.branches {
            let target = self.labels.get(label).ok_or_else(|| format!("no label '{label}'"))?;
            self.kernel.code[*at].target = *target;
        }
        Ok(self.kernel)
    }

    /// `.visible .entry NAME( .param .u64 A, .param .u32 B ) .maxntid 256, 1, 1 {`
    fn head(&mut self, text: &str) -> Result<(), String> {
        let (name, rest) = text.split_once('(').ok_or("a kernel without parameters")?;
        let mut words = name.split_whitespace().filter(|word| *word != ".visible");
        if words.next() != Some(".entry") {
            return Err("only kernels are understood, no functions".to_owned());
        }
        self.kernel.name = words.next().ok_or("a kernel without a name")?.to_owned();
        let (parameters, limits) = rest.split_once(')').ok_or("parameters that do not end")?;
        for parameter in parameters.split(',').filter(|text| !text.trim().is_empty()) {
            let mut words = parameter.split_whitespace();
            let of = match (words.next(), words.next()) {
                (Some(".param"), Some(of)) => of.strip_prefix('.').and_then(Type::parse),
                _ => None,
            };
            let (of, name) =
                of.zip(words.next()).ok_or_else(|| format!("unknown parameter '{}'", parameter.trim()))?;
            let offset = self.kernel.parameter_bytes.next_multiple_of(of.bytes());
            self.kernel.parameters.push((offset, of.bytes()));
            self.kernel.parameter_bytes = offset + of.bytes();
            self.parameters.insert(name.to_owned(), offset as u64);
        }
        let limits = limits.trim_end_matches('{').trim();
        if let Some(threads) = limits.strip_prefix(".maxntid") {
            let sizes: Option<Vec<u32>> = threads.split(',').map(|size| size.trim().parse().ok()).collect();
            self.kernel.max_threads = Some(sizes.ok_or("unreadable .maxntid")?.iter().product());
        } else if !limits.is_empty() {
            return Err(format!("unknown limits '{limits}'"));
        }
        Ok(())
    }

    fn statement(&mut self, line: usize, text: &str) -> Result<(), String> {
        match text {
            "{" => {
                self.scopes.push(Vec::new());
                return Ok(());
            }
            "}" => {
                self.leave_scope();
                return Ok(());
            }
            _ => {}
        }
        if let Some(label) = text.strip_suffix(':') {
            self.labels.insert(label.to_owned(), self.kernel.code.len());
            return Ok(());
        }
        let text = text.strip_suffix(';').ok_or("a statement that does not end with ';'")?;
        if let Some(declared) = text.strip_prefix(".reg") {
            return self.declare(declared);
        }
        if text.starts_with(".shared") {
            let array = Array::parse(text)?;
            let offset = self.kernel.shared_bytes.next_multiple_of(array.align);
            self.kernel.shared_bytes = offset + array.length * array.of.bytes();
            self.shared.insert(array.name, SHARED + offset as u64);
            return Ok(());
        }
        let instruction = self.instruction(line, text)?;
        self.kernel.code.push(instruction);
        Ok(())
    }

    /// ` .b64 %rd<70>` or ` .pred %p, %q`
    fn declare(&mut self, text: &str) -> Result<(), String> {
        let (of, names) = text.trim().split_once(char::is_whitespace).ok_or("registers without a name")?;
        let of = of
            .strip_prefix('.')
            .and_then(Type::parse)
            .ok_or_else(|| format!("unknown register type '{of}'"))?;
        for name in names.split(',').map(str::trim) {
            let (stem, count) = match name.split_once('<') {
                Some((stem, count)) => (
                    stem,
                    Some(
                        count
                            .trim_end_matches('>')
                            .parse::<usize>()
                            .map_err(|_| "unreadable register count")?,
                    ),
                ),
                None => (name, None),
            };
            for i in 0..count.unwrap_or(1) {
                let name = count.map_or_else(|| stem.to_owned(), |_| format!("{stem}{i}"));
                let number = u16::try_from(self.kernel.registers.len()).map_err(|_| "too many registers")?;
                let outside = self.registers.insert(name.clone(), number);
                if let Some(scope) = self.scopes.last_mut() {
                    scope.push((name, outside));
                }
                self.kernel.registers.push(of);
            }
        }
        Ok(())
    }

    fn leave_scope(&mut self) {
        for (name, outside) in self.scopes.pop().into_iter().flatten() {
            match outside {
                Some(number) => self.registers.insert(name, number),
                None => self.registers.remove(&name),
            };
        }
    }

    fn instruction(&mut self, line: usize, text: &str) -> Result<Instruction, String> {
        let mut text = text.trim();
        let mut guard = None;
        if let Some(guarded) = text.strip_prefix('@') {
            let (predicate, rest) = guarded.split_once(char::is_whitespace).ok_or("a guard alone")?;
            let register = self.register(predicate.trim_start_matches('!'))?;
            guard = Some((register, !predicate.starts_with('!')));
            text = rest.trim();
        }
        let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let Opcode { op, of, width, reads } =
            Opcode::parse(opcode).ok_or_else(|| format!("unknown instruction '{opcode}'"))?;
        let mut instruction =
            Instruction { guard, op, of, to: [0; 4], width, from: [Operand::None; 6], target: 0, line };
        let operands = split(operands);
        let given = operands.len();
        let in_parts = operands.iter().any(|operand| operand.starts_with('{'));
        let mut operands = operands.into_iter();
        let mut next = || operands.next().ok_or("an operand is missing");
        match op {
            Op::Return => {}
            Op::Branch => self.branches.push((self.kernel.code.len(), next()?.to_owned())),
            Op::Barrier => {
                if next()? != "0" {
                    return Err("only barrier 0 is understood".to_owned());
                }
            }
            Op::Load(_) => {
                self.several(next()?, width, |this, i, name| {
                    instruction.to[i] = this.register(name)?;
                    Ok(())
                })?;
                (instruction.from[0], instruction.from[1]) = self.address(next()?)?;
            }
            Op::Store(_) => {
                (instruction.from[0], instruction.from[1]) = self.address(next()?)?;
                self.several(next()?, width, |this, i, name| {
                    instruction.from[2 + i] = this.operand(name)?;
                    Ok(())
                })?;
            }
            Op::Move if in_parts => {
                self.parts(&mut instruction, next()?, next()?)?;
            }
            _ => {
                instruction.to[0] = self.register(next()?)?;
                for i in 0..reads {
                    instruction.from[i] = self.operand(next()?)?;
                }
                self.check_width(&instruction)?;
            }
        }
        let taken = given - operands.len();
        if taken == given { Ok(instruction) } else { Err(format!("{} operands, {taken} are wanted", given)) }
    }

    /// `mov.b64 {%r1, %r2}, %rd1` and `mov.b64 %rd1, {%r1, %r2}`
    fn parts(&self, instruction: &mut Instruction, to: &str, from: &str) -> Result<(), String> {
        let unpacks = to.starts_with('{');
        (instruction.op, instruction.width) = (if unpacks { Op::Unpack } else { Op::Pack }, 2);
        let part = |this: &Self, register: u16| {
            let bits = this.kernel.registers[register as usize].bits;
            if 2 * bits == instruction.of.bits { Ok(register) } else { Err(format!("a part of {bits} bits")) }
        };
        let (whole, parts) = if unpacks { (from, to) } else { (to, from) };
        let whole = self.register(whole)?;
        let mut names = [0; 2];
        self.several(parts, 2, |this, i, name| {
            names[i] = part(this, this.register(name)?)?;
            Ok(())
        })?;
        if unpacks {
            instruction.from[0] = Operand::Register(whole);
            instruction.to[..2].copy_from_slice(&names);
        } else {
            instruction.to[0] = whole;
            instruction.from[..2].copy_from_slice(&names.map(Operand::Register));
        }
        Ok(())
    }

    /// Register widths are those of the instruction: a text in which they are not is one that a driver refuses.
    fn check_width(&self, instruction: &Instruction) -> Result<(), String> {
        let to = match instruction.op {
            Op::Compare(_) => 1,
            Op::MultiplyWide | Op::MultiplyAddWide => 2 * instruction.of.bits,
            _ => instruction.of.bits,
        };
        let has = self.kernel.registers[instruction.to[0] as usize].bits;
        if has == to { Ok(()) } else { Err(format!("a result of {to} bits in a register of {has}")) }
    }

    /// `{%r1, %r2}`, or one alone.
    fn several(
        &self,
        text: &str,
        width: usize,
        mut take: impl FnMut(&Self, usize, &str) -> Result<(), String>,
    ) -> Result<(), String> {
        let names: Vec<&str> = text.trim_matches(['{', '}', ' ']).split(',').map(str::trim).collect();
        if names.len() != width {
            return Err(format!("{} elements, {width} are wanted", names.len()));
        }
        names.iter().enumerate().try_for_each(|(i, name)| take(self, i, name))
    }

    fn register(&self, name: &str) -> Result<u16, String> {
        self.registers.get(name).copied().ok_or_else(|| format!("no register '{name}'"))
    }

    /// `[%rd1+8]`, `[name]`, `[name+8]`: where, and how far from there.
    fn address(&self, text: &str) -> Result<(Operand, Operand), String> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).ok_or("not an address")?;
        let (base, offset) = match inner.split_once('+') {
            Some((base, offset)) => (base.trim(), number(offset.trim()).ok_or("unreadable offset")?),
            None => (inner.trim(), 0),
        };
        Ok((self.operand(base)?, Operand::Immediate(offset)))
    }

    fn operand(&self, text: &str) -> Result<Operand, String> {
        if let Some(special) = special(text) {
            return Ok(Operand::Special(special));
        }
        if text.starts_with('%') || self.registers.contains_key(text) {
            return self.register(text).map(Operand::Register);
        }
        let symbol = || {
            let here = self.parameters.get(text).or_else(|| self.shared.get(text));
            here.or_else(|| self.module.symbols.get(text)).copied()
        };
        let value = number(text).or_else(symbol).ok_or_else(|| format!("unknown operand '{text}'"))?;
        Ok(Operand::Immediate(value))
    }
}

fn special(name: &str) -> Option<Special> {
    Some(match name {
        "%tid.x" => Special::Thread,
        "%ntid.x" => Special::Threads,
        "%ctaid.x" => Special::Block,
        "%nctaid.x" => Special::Blocks,
        _ => return None,
    })
}

/// Operands, cut at the commas that stand outside of braces and brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut start) = (0, 0);
    let mut operands = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                operands.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    operands.push(text[start..].trim());
    operands.retain(|operand| !operand.is_empty());
    operands
}

/// `5`, `-5`, `0x1F`, `0x1FU`.
fn number(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex.trim_end_matches('U'), 16).ok();
    }
    text.parse::<u64>().ok().or_else(|| text.parse::<i64>().ok().map(|value| value as u64))
}
