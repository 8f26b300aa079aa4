//! One instruction: what it does, to which type, with what.

/// An integer type, or a predicate of one bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Type {
    pub bits: u32,
    pub signed: bool,
}

impl Type {
    /// `.b32`, `.u64`, `.s16`, `.pred`, without the dot.
    pub fn parse(name: &str) -> Option<Self> {
        let bits = match name.trim_start_matches(['b', 'u', 's']) {
            "8" => 8,
            "16" => 16,
            "32" => 32,
            "64" => 64,
            _ if name == "pred" => 1,
            _ => return None,
        };
        Some(Self { bits, signed: name.starts_with('s') })
    }

    pub fn bytes(self) -> usize {
        self.bits as usize / 8
    }

    /// The bits of `value` that belong to the type.
    pub fn mask(self, value: u64) -> u64 {
        if self.bits == 64 { value } else { value & ((1 << self.bits) - 1) }
    }

    /// `value` as the type has it, in 64 bits: with its sign, if the type has one.
    pub fn extend(self, value: u64) -> u64 {
        if !self.signed || self.bits == 64 {
            return self.mask(value);
        }
        let unused = 64 - self.bits;
        (((value << unused) as i64) >> unused) as u64
    }
}

/// Where memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    Parameter,
    Constant,
    Shared,
    Global,
    /// Told by the address.
    Generic,
}

impl Space {
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "param" => Self::Parameter,
            "const" => Self::Constant,
            "shared" => Self::Shared,
            "global" => Self::Global,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// What the machine tells a thread about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    Thread,
    Threads,
    Block,
    Blocks,
}

/// What an instruction reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    None,
    Register(u16),
    Immediate(u64),
    Special(Special),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Add,
    Subtract,
    MultiplyLow,
    MultiplyHigh,
    /// To twice the width.
    MultiplyWide,
    MultiplyAddLow,
    MultiplyAddWide,
    And,
    Or,
    Xor,
    Not,
    Negate,
    ShiftLeft,
    ShiftRight,
    Minimum,
    Maximum,
    Move,
    /// Equal parts of a register to registers, low to high, and back.
    Unpack,
    Pack,
    /// From the type in it.
    Convert(Type),
    Compare(Compare),
    Select,
    /// Bytes of two words in any order.
    Permute,
    /// 32 bits of two words side by side; the flag is whether the amount wraps at 32 or stops there.
    FunnelLeft(bool),
    FunnelRight(bool),
    Extract,
    Load(Space),
    Store(Space),
    Branch,
    Barrier,
    Return,
}

/// An instruction, ready to run.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// It runs only where this predicate is true, or false.
    pub guard: Option<(u16, bool)>,
    pub op: Op,
    pub of: Type,
    /// What it writes: registers, and how many.
    pub to: [u16; 4],
    /// Elements that a load or store moves, parts that are packed; else 1.
    pub width: usize,
    /// What it reads. Of a load and a store, first the address and its offset.
    pub from: [Operand; 6],
    /// Where a branch goes.
    pub target: usize,
    /// Where it stands in the PTX.
    pub line: usize,
}

/// An opcode with its modifiers, such as `mad.lo.s32`.
pub struct Opcode {
    pub op: Op,
    pub of: Type,
    pub width: usize,
    /// Operands that it reads, without those of memory.
    pub reads: usize,
}

const NO_TYPE: Type = Type { bits: 64, signed: false };

impl Opcode {
    /// `None` for whatever is not known.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts: Vec<&str> = text.split('.').collect();
        let name = parts.remove(0);
        if matches!(name, "ld" | "st") {
            return Self::memory(name == "ld", &parts);
        }
        let plain = |op, reads| Some(Self { op, of: NO_TYPE, width: 1, reads });
        match (name, parts.as_slice()) {
            ("ret", []) => return plain(Op::Return, 0),
            ("bra", [] | ["uni"]) => return plain(Op::Branch, 0),
            ("bar", ["sync"]) => return plain(Op::Barrier, 1),
            _ => {}
        }
        let of = Type::parse(parts.pop()?)?;
        let (op, reads) = match (name, parts.as_slice()) {
            ("add", []) => (Op::Add, 2),
            ("sub", []) => (Op::Subtract, 2),
            ("mul", ["lo"]) => (Op::MultiplyLow, 2),
            ("mul", ["hi"]) => (Op::MultiplyHigh, 2),
            ("mul", ["wide"]) => (Op::MultiplyWide, 2),
            ("mad", ["lo"]) => (Op::MultiplyAddLow, 3),
            ("mad", ["wide"]) => (Op::MultiplyAddWide, 3),
            ("and", []) => (Op::And, 2),
            ("or", []) => (Op::Or, 2),
            ("xor", []) => (Op::Xor, 2),
            ("not", []) => (Op::Not, 1),
            ("neg", []) => (Op::Negate, 1),
            ("shl", []) => (Op::ShiftLeft, 2),
            ("shr", []) => (Op::ShiftRight, 2),
            ("min", []) => (Op::Minimum, 2),
            ("max", []) => (Op::Maximum, 2),
            // Windows of addresses do not overlap, so an address is the same in its space and in all of memory.
            ("mov", [])
            | ("cvta", ["global" | "shared" | "const"] | ["to", "global" | "shared" | "const"]) => {
                (Op::Move, 1)
            }
            ("cvt", [to]) => {
                let (to, from) = (Type::parse(to)?, of);
                return Some(Self { op: Op::Convert(from), of: to, width: 1, reads: 1 });
            }
            ("setp", [compare]) => (Op::Compare(compare_of(compare)?), 2),
            ("selp", []) => (Op::Select, 3),
            ("prmt", []) => (Op::Permute, 3),
            ("shf", ["l", mode @ ("wrap" | "clamp")]) => (Op::FunnelLeft(*mode == "wrap"), 3),
            ("shf", ["r", mode @ ("wrap" | "clamp")]) => (Op::FunnelRight(*mode == "wrap"), 3),
            ("bfe", []) if !of.signed => (Op::Extract, 3),
            _ => return None,
        };
        Some(Self { op, of, width: 1, reads })
    }

    fn memory(load: bool, parts: &[&str]) -> Option<Self> {
        let (of, mut parts) = parts.split_last()?;
        let of = Type::parse(of)?;
        let mut space = Space::Generic;
        if let Some((first, rest)) = parts.split_first()
            && let Some(named) = Space::parse(first)
        {
            (space, parts) = (named, rest);
        }
        // The cache for what nobody writes: checked like everything else.
        if let (true, Some((&"nc", rest))) = (load && space == Space::Global, parts.split_first()) {
            parts = rest;
        }
        let width = match parts {
            [] => 1,
            ["v2"] => 2,
            ["v4"] => 4,
            _ => return None,
        };
        let op = if load { Op::Load(space) } else { Op::Store(space) };
        Some(Self { op, of, width, reads: if load { 0 } else { width } })
    }
}

fn compare_of(name: &str) -> Option<Compare> {
    Some(match name {
        "eq" => Compare::Equal,
        "ne" => Compare::NotEqual,
        "lt" | "lo" => Compare::Less,
        "le" | "ls" => Compare::LessEqual,
        "gt" | "hi" => Compare::Greater,
        "ge" | "hs" => Compare::GreaterEqual,
        _ => return None,
    })
}
