//! Runs a kernel: one block of threads after another, each thread up to the next barrier.

use crate::{
    instruction::{Compare, Instruction, Op, Operand, Space, Special, Type},
    memory::{Memory, little_endian},
    module::{CONSTANTS, Kernel, Module, SHARED},
};

/// Instructions after which a thread is taken for one that never ends.
const MOST_STEPS: u64 = 20_000_000;

/// Why a launch failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    pub kind: FaultKind,
    pub what: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// An address that is not there, or not written.
    Illegal,
    Misaligned,
    /// Two threads at one place with no barrier between them.
    Race,
    /// A barrier that some threads do not reach.
    Barrier,
    /// A thread that does not end.
    Endless,
}

impl Fault {
    pub fn illegal(what: &str) -> Self {
        Self { kind: FaultKind::Illegal, what: what.to_owned() }
    }

    pub fn race(what: &str) -> Self {
        Self { kind: FaultKind::Race, what: what.to_owned() }
    }

    fn new(kind: FaultKind, what: &str) -> Self {
        Self { kind, what: what.to_owned() }
    }
}

/// The shape of a launch, and what its kernel is given.
#[derive(Clone, Debug)]
pub struct Launch {
    pub blocks: u32,
    pub threads: u32,
    pub parameters: Vec<u8>,
}

/// Runs `kernel` to its end, or to its first fault. Returns how many instructions that took.
pub fn run(module: &Module, kernel: &Kernel, launch: &Launch, memory: &mut Memory) -> Result<u64, Fault> {
    memory.begin_launch();
    let mut steps = 0;
    let mut threads: Vec<Thread> = Vec::new();
    threads.resize_with(launch.threads as usize, || Thread::new(kernel));
    for block in 0..launch.blocks {
        let shared = Shared::new(kernel.shared_bytes);
        let mut block = Block { module, kernel, launch, memory, number: block, shared, epoch: 1, steps: 0 };
        block.run(&mut threads)?;
        steps += block.steps;
    }
    Ok(steps)
}

struct Thread {
    registers: Vec<u64>,
    at: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    AtBarrier,
    Done,
}

impl Thread {
    fn new(kernel: &Kernel) -> Self {
        Self { registers: vec![0; kernel.registers.len()], at: 0, state: State::Running }
    }
}

/// Shared memory: bytes, and for each who wrote and read it, when.
struct Shared {
    bytes: Vec<u8>,
    /// Epoch and thread; an epoch of 0 is nobody.
    writer: Vec<(u32, u32)>,
    reader: Vec<(u32, u32)>,
}

const SEVERAL: u32 = u32::MAX;

impl Shared {
    fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes], writer: vec![(0, 0); bytes], reader: vec![(0, 0); bytes] }
    }

    fn range(&self, address: u64, bytes: usize) -> Result<std::ops::Range<usize>, Fault> {
        let start = address.wrapping_sub(SHARED) as usize;
        match start.checked_add(bytes) {
            Some(end) if end <= self.bytes.len() => Ok(start..end),
            _ => Err(Fault::illegal("shared memory out of bounds")),
        }
    }

    fn load(&mut self, address: u64, bytes: usize, epoch: u32, thread: u32) -> Result<u64, Fault> {
        let range = self.range(address, bytes)?;
        for at in range.clone() {
            match self.writer[at] {
                (0, _) => return Err(Fault::illegal("shared memory read that was never written")),
                (when, who) if when == epoch && who != thread => {
                    return Err(Fault::race(
                        "shared memory read that another thread wrote since the last barrier",
                    ));
                }
                _ => {}
            }
            let several = self.reader[at].0 == epoch && self.reader[at].1 != thread;
            self.reader[at] = (epoch, if several { SEVERAL } else { thread });
        }
        Ok(little_endian(&self.bytes[range]))
    }

    fn store(
        &mut self,
        address: u64,
        bytes: usize,
        value: u64,
        epoch: u32,
        thread: u32,
    ) -> Result<(), Fault> {
        let range = self.range(address, bytes)?;
        for at in range.clone() {
            let other = |(when, who): (u32, u32)| when == epoch && who != thread;
            if other(self.writer[at]) || other(self.reader[at]) {
                return Err(Fault::race(
                    "shared memory written that another thread touched since the last barrier",
                ));
            }
            self.writer[at] = (epoch, thread);
        }
        self.bytes[range].copy_from_slice(&value.to_le_bytes()[..bytes]);
        Ok(())
    }
}

struct Block<'a> {
    module: &'a Module,
    kernel: &'a Kernel,
    launch: &'a Launch,
    memory: &'a mut Memory,
    number: u32,
    shared: Shared,
    /// Counts barriers.
    epoch: u32,
    steps: u64,
}

impl Block<'_> {
    fn run(&mut self, threads: &mut [Thread]) -> Result<(), Fault> {
        for thread in threads.iter_mut() {
            thread.registers.fill(0);
            (thread.at, thread.state) = (0, State::Running);
        }
        loop {
            for (number, thread) in threads.iter_mut().enumerate() {
                self.until_barrier(thread, number as u32)?;
            }
            let waiting = threads.iter().filter(|thread| thread.state == State::AtBarrier).count();
            if waiting == 0 {
                return Ok(());
            }
            if waiting < threads.len() {
                let what = format!(
                    "kernel {}, block {}: a barrier that {waiting} of {} threads reach",
                    self.kernel.name,
                    self.number,
                    threads.len()
                );
                return Err(Fault::new(FaultKind::Barrier, &what));
            }
            for thread in threads.iter_mut() {
                thread.state = State::Running;
            }
            self.epoch += 1;
        }
    }

    fn until_barrier(&mut self, thread: &mut Thread, number: u32) -> Result<(), Fault> {
        let mut steps = 0;
        while thread.state == State::Running {
            let Some(instruction) = self.kernel.code.get(thread.at) else {
                return Err(self.blame(Fault::illegal("code runs past its end"), 0, number));
            };
            steps += 1;
            if steps > MOST_STEPS {
                let fault = Fault::new(FaultKind::Endless, "a thread does not end");
                return Err(self.blame(fault, instruction.line, number));
            }
            self.step(instruction, thread, number)
                .map_err(|fault| self.blame(fault, instruction.line, number))?;
        }
        self.steps += steps;
        Ok(())
    }

    fn blame(&self, fault: Fault, line: usize, thread: u32) -> Fault {
        let what = format!(
            "kernel {}, PTX line {line}, block {}, thread {thread}: {}",
            self.kernel.name, self.number, fault.what
        );
        Fault { what, ..fault }
    }

    #[inline(always)]
    fn read(&self, operand: Operand, thread: &Thread, number: u32) -> u64 {
        match operand {
            Operand::Register(register) => thread.registers[register as usize],
            Operand::Immediate(value) => value,
            Operand::Special(Special::Thread) => number.into(),
            Operand::Special(Special::Threads) => self.launch.threads.into(),
            Operand::Special(Special::Block) => self.number.into(),
            Operand::Special(Special::Blocks) => self.launch.blocks.into(),
            Operand::None => 0,
        }
    }

    fn step(&mut self, instruction: &Instruction, thread: &mut Thread, number: u32) -> Result<(), Fault> {
        thread.at += 1;
        if let Some((predicate, wanted)) = instruction.guard
            && (thread.registers[predicate as usize] == 1) != wanted
        {
            return Ok(());
        }
        match instruction.op {
            Op::Return => thread.state = State::Done,
            Op::Barrier => thread.state = State::AtBarrier,
            Op::Branch => thread.at = instruction.target,
            Op::Load(space) => {
                let address = self.address(instruction, thread, number)?;
                for i in 0..instruction.width {
                    let at = address.wrapping_add((i * instruction.of.bytes()) as u64);
                    let value =
                        instruction.of.extend(self.load(space, at, instruction.of.bytes(), number)?);
                    let to = instruction.to[i] as usize;
                    thread.registers[to] = self.kernel.registers[to].mask(value);
                }
            }
            Op::Store(space) => {
                let address = self.address(instruction, thread, number)?;
                for i in 0..instruction.width {
                    let at = address.wrapping_add((i * instruction.of.bytes()) as u64);
                    let value = self.read(instruction.from[2 + i], thread, number);
                    self.store(space, at, instruction.of.bytes(), value, number)?;
                }
            }
            Op::Unpack => {
                let part = instruction.of.bits / instruction.width as u32;
                let whole = self.read(instruction.from[0], thread, number);
                for (i, &to) in instruction.to[..instruction.width].iter().enumerate() {
                    let mask = self.kernel.registers[to as usize];
                    thread.registers[to as usize] = mask.mask(whole >> (i as u32 * part));
                }
            }
            op => {
                let from = [0, 1, 2].map(|i| self.read(instruction.from[i], thread, number));
                let value = calculate(op, instruction.of, from);
                let to = instruction.to[0] as usize;
                thread.registers[to] = self.kernel.registers[to].mask(value);
            }
        }
        Ok(())
    }

    fn address(&self, instruction: &Instruction, thread: &Thread, number: u32) -> Result<u64, Fault> {
        let base = self.read(instruction.from[0], thread, number);
        let address = base.wrapping_add(self.read(instruction.from[1], thread, number));
        let size = (instruction.of.bytes() * instruction.width) as u64;
        if address.is_multiple_of(size) {
            Ok(address)
        } else {
            Err(Fault::new(FaultKind::Misaligned, &format!("{size} bytes at {address:#x}")))
        }
    }

    /// A thread's number among all of the launch.
    fn of_launch(&self, number: u32) -> u32 {
        self.number * self.launch.threads + number
    }

    fn load(&mut self, space: Space, address: u64, bytes: usize, number: u32) -> Result<u64, Fault> {
        let within = |memory: &[u8], start: u64| {
            let start = address.wrapping_sub(start) as usize;
            let end = start.checked_add(bytes)?;
            memory.get(start..end).map(little_endian)
        };
        match told(space, address) {
            Space::Parameter => {
                within(&self.launch.parameters, 0).ok_or_else(|| Fault::illegal("parameter out of bounds"))
            }
            Space::Constant => within(&self.module.constants, CONSTANTS)
                .ok_or_else(|| Fault::illegal("constant out of bounds")),
            Space::Shared => self.shared.load(address, bytes, self.epoch, number),
            Space::Global | Space::Generic => {
                let thread = self.of_launch(number);
                self.memory.load(address, bytes, thread)
            }
        }
    }

    fn store(
        &mut self,
        space: Space,
        address: u64,
        bytes: usize,
        value: u64,
        number: u32,
    ) -> Result<(), Fault> {
        match told(space, address) {
            Space::Parameter | Space::Constant => Err(Fault::illegal("write to memory that is only read")),
            Space::Shared => self.shared.store(address, bytes, value, self.epoch, number),
            Space::Global | Space::Generic => {
                let thread = self.of_launch(number);
                self.memory.store(address, bytes, value, thread)
            }
        }
    }
}

/// The space of an address, where the instruction leaves that to it.
fn told(space: Space, address: u64) -> Space {
    match (space, address) {
        (Space::Generic, SHARED..CONSTANTS) => Space::Shared,
        (Space::Generic, CONSTANTS..0x1_0000_0000) => Space::Constant,
        (space, _) => space,
    }
}

/// What an instruction that touches no memory yields.
fn calculate(op: Op, of: Type, [a, b, c]: [u64; 3]) -> u64 {
    let product = || i128::from(of.extend(a) as i64) * i128::from(of.extend(b) as i64);
    let unsigned = || u128::from(of.mask(a)) * u128::from(of.mask(b));
    let wide = || if of.signed { product() as u128 } else { unsigned() };
    match op {
        Op::Add => a.wrapping_add(b),
        Op::Subtract => a.wrapping_sub(b),
        Op::MultiplyLow => a.wrapping_mul(b),
        Op::MultiplyHigh => (wide() >> of.bits) as u64,
        Op::MultiplyWide => wide() as u64,
        Op::MultiplyAddLow => a.wrapping_mul(b).wrapping_add(c),
        Op::MultiplyAddWide => (wide() as u64).wrapping_add(c),
        Op::And => a & b,
        Op::Or => a | b,
        Op::Xor => a ^ b,
        Op::Not => !a,
        Op::Negate => a.wrapping_neg(),
        Op::ShiftLeft => shift_amount(b, of).map_or(0, |by| a << by),
        Op::ShiftRight if of.signed => {
            ((of.extend(a) as i64) >> shift_amount(b, of).unwrap_or(of.bits - 1)) as u64
        }
        Op::ShiftRight => shift_amount(b, of).map_or(0, |by| of.mask(a) >> by),
        Op::Minimum => least(of, a, b, true),
        Op::Maximum => least(of, a, b, false),
        Op::Move => a,
        Op::Convert(from) => from.extend(a),
        Op::Compare(compare) => u64::from(holds(compare, of, a, b)),
        Op::Select => {
            if c == 1 {
                a
            } else {
                b
            }
        }
        Op::Permute => permute(a, b, c),
        Op::FunnelLeft(wraps) => (pair(a, b) << funnel_amount(c, wraps)) >> 32,
        Op::FunnelRight(wraps) => pair(a, b) >> funnel_amount(c, wraps),
        Op::Extract => extract(of, a, b, c),
        Op::Pack => a | (b << (of.bits / 2)),
        Op::Unpack | Op::Load(_) | Op::Store(_) | Op::Branch | Op::Barrier | Op::Return => 0,
    }
}

/// `None` where everything is shifted out.
fn shift_amount(by: u64, of: Type) -> Option<u32> {
    let by = by as u32;
    (by < of.bits).then_some(by)
}

fn holds(compare: Compare, of: Type, a: u64, b: u64) -> bool {
    let (a, b) = (of.extend(a), of.extend(b));
    let order = if of.signed { (a as i64).cmp(&(b as i64)) } else { a.cmp(&b) };
    match compare {
        Compare::Equal => order.is_eq(),
        Compare::NotEqual => order.is_ne(),
        Compare::Less => order.is_lt(),
        Compare::LessEqual => order.is_le(),
        Compare::Greater => order.is_gt(),
        Compare::GreaterEqual => order.is_ge(),
    }
}

fn least(of: Type, a: u64, b: u64, least: bool) -> u64 {
    if holds(Compare::Less, of, a, b) == least { a } else { b }
}

fn pair(low: u64, high: u64) -> u64 {
    (low & 0xffff_ffff) | (high << 32)
}

fn funnel_amount(by: u64, wraps: bool) -> u64 {
    if wraps { by & 31 } else { (by & 0xffff_ffff).min(32) }
}

fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = pair(a, b).to_le_bytes();
    (0..4).fold(0, |result, i| {
        let select = (selector >> (4 * i)) & 15;
        let byte = bytes[(select & 7) as usize];
        // With its top bit a selector asks for the byte's sign instead.
        let byte = if select & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        result | (u64::from(byte) << (8 * i))
    })
}

fn extract(of: Type, value: u64, from: u64, length: u64) -> u64 {
    let (from, length) = (from & 0xff, length & 0xff);
    let value = if from >= u64::from(of.bits) { 0 } else { of.mask(value) >> from };
    if length >= 64 { value } else { value & ((1 << length) - 1) }
}
