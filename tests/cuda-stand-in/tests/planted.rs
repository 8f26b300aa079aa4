//! The stand-in finds what it is there to find: each test plants a mistake, and beside it stands what passes without.

use cuda_stand_in::{
    driver::{self, Driver},
    machine::{self, Fault, FaultKind, Launch},
    memory::Memory,
    module::Module,
    settings::Settings,
};

/// A kernel that takes two addresses, around `body`.
fn kernel(body: &str) -> String {
    format!(
        ".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry planted(\n.param .u64 from,\n.param .u64 to\n)\n\
         .maxntid 64, 1, 1\n{{\n.reg .pred %p<4>;\n.reg .b32 %r<16>;\n.reg .b64 %rd<16>;\n\
         .shared .align 4 .b8 row[256];\n\
         ld.param.u64 %rd1, [from];\nld.param.u64 %rd2, [to];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 4;\n\
         add.s64 %rd4, %rd1, %rd3;\nadd.s64 %rd5, %rd2, %rd3;\n{body}\n}}\n"
    )
}

/// Runs it with 64 threads over 64 words, and returns the 64 that it wrote.
fn run(body: &str) -> Result<Vec<u32>, Fault> {
    run_over(body, 64)
}

fn run_over(body: &str, words: usize) -> Result<Vec<u32>, Fault> {
    let module = Module::parse(&kernel(body)).unwrap();
    let mut memory = Memory::new(1 << 20);
    let (from, to) = (memory.allocate(4 * words).unwrap(), memory.allocate(256).unwrap());
    let bytes: Vec<u8> = (0..words as u32).flat_map(|word| (1000 + word).to_le_bytes()).collect();
    memory.put(from, &bytes).unwrap();
    let parameters = [from.to_le_bytes(), to.to_le_bytes()].concat();
    let launch = Launch { blocks: 1, threads: 64, parameters };
    machine::run(&module, &module.kernels["planted"], &launch, &mut memory)?;
    let bytes = memory.get(to, 256)?;
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

fn kind(outcome: Result<Vec<u32>, Fault>) -> FaultKind {
    let fault = outcome.expect_err("the planted mistake is found");
    assert!(fault.what.contains("planted") || fault.what.contains("copy"), "{}", fault.what);
    fault.kind
}

const COPY: &str = "ld.global.u32 %r2, [%rd4];\nst.global.u32 [%rd5], %r2;\nret;";

#[test]
fn a_copy_is_right_and_one_past_the_end_is_found() {
    assert_eq!(run(COPY).unwrap(), (1000..1064).collect::<Vec<_>>());
    assert_eq!(kind(run_over(COPY, 63)), FaultKind::Illegal, "reads one word too many");
    let beyond = "ld.global.u32 %r2, [%rd4];\nst.global.u32 [%rd5+4], %r2;\nret;";
    assert_eq!(kind(run(beyond)), FaultKind::Illegal, "writes one word too far");
}

#[test]
fn memory_that_nobody_wrote_is_not_read() {
    assert_eq!(kind(run("ld.global.u32 %r2, [%rd5];\nst.global.u32 [%rd5], %r2;\nret;")), FaultKind::Illegal);
    // Nor copied back: only the first thread writes its word.
    let first_only = "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra $end;\nst.global.u32 [%rd5], %r1;\n$end:\nret;";
    assert_eq!(kind(run(first_only)), FaultKind::Illegal);
    assert_eq!(kind(run("ld.shared.u32 %r2, [row];\nst.global.u32 [%rd5], %r2;\nret;")), FaultKind::Illegal);
}

#[test]
fn threads_that_write_one_word_race() {
    assert_eq!(kind(run("st.global.u32 [%rd2], %r1;\nret;")), FaultKind::Race);
    // Each writes its own, and reads its neighbour's.
    let neighbour =
        "st.global.u32 [%rd5], %r1;\nld.global.u32 %r2, [%rd2];\nst.global.u32 [%rd5], %r2;\nret;";
    assert_eq!(kind(run(neighbour)), FaultKind::Race);
}

/// Each thread puts its word into shared memory, and takes that of the thread opposite.
fn reversed(barriers: [&str; 2]) -> String {
    let [first, second] = barriers;
    format!(
        "mov.u32 %r3, row;\nshl.b32 %r4, %r1, 2;\nadd.s32 %r5, %r3, %r4;\nmov.u32 %r6, 252;\nsub.s32 %r7, %r6, %r4;\n\
         add.s32 %r8, %r3, %r7;\nld.global.u32 %r2, [%rd4];\nst.shared.u32 [%r5], %r2;\n{first}\n\
         ld.shared.u32 %r9, [%r8];\n{second}\nst.shared.u32 [%r5], %r9;\nst.global.u32 [%rd5], %r9;\nret;"
    )
}

const BARRIER: &str = "bar.sync 0;";

#[test]
fn a_missing_barrier_is_found() {
    let right: Vec<u32> = (1000..1064).rev().collect();
    assert_eq!(run(&reversed([BARRIER, BARRIER])).unwrap(), right);
    // The threads run one after another, so the first finds nothing where the last will write.
    assert_eq!(kind(run(&reversed(["", BARRIER]))), FaultKind::Illegal);
    assert_eq!(kind(run(&reversed([BARRIER, ""]))), FaultKind::Race);
}

#[test]
fn a_barrier_that_half_of_the_threads_reach_is_found() {
    let half =
        "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $end;\nbar.sync 0;\n$end:\nst.global.u32 [%rd5], %r1;\nret;";
    assert_eq!(kind(run(half)), FaultKind::Barrier);
}

#[test]
fn what_is_not_aligned_or_does_not_end_is_found() {
    assert_eq!(kind(run("ld.global.u32 %r2, [%rd4+2];\nret;")), FaultKind::Misaligned);
    assert_eq!(kind(run("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd4];\nret;")), FaultKind::Misaligned);
    assert_eq!(kind(run("$again:\nbra.uni $again;\nret;")), FaultKind::Endless);
}

#[test]
fn what_the_interpreter_does_not_know_is_refused_with_its_line() {
    for (body, what) in [
        ("atom.global.add.u32 %r2, [%rd4], 1;\nret;", "atom.global.add.u32"),
        ("add.f32 %r2, %r1, %r1;\nret;", "add.f32"),
        ("bar.sync 1;\nret;", "barrier 0"),
        ("add.s64 %r2, %rd1, %rd2;\nret;", "64 bits in a register of 32"),
        ("mov.u32 %r2, %clock;\nret;", "%clock"),
        ("mov.u32 %r99, 1;\nret;", "%r99"),
        ("bra $nowhere;\nret;", "$nowhere"),
        ("add.s32 %r2, %r1;\nret;", "missing"),
        (".local .align 4 .b8 stack[4];\nret;", "unknown"),
    ] {
        let invalid = Module::parse(&kernel(body)).expect_err(body);
        assert!(invalid.to_string().contains(what), "{body}: {invalid}");
    }
}

/// What one instruction makes of its operands, in `%rd9` or, of 32 bits, in `%r9`.
fn result(instruction: &str) -> u64 {
    let wide = instruction.contains("%rd9");
    let store = if wide {
        "cvt.u32.u64 %r10, %rd9;\nshr.u64 %rd10, %rd9, 32;\ncvt.u32.u64 %r11, %rd10;"
    } else {
        "mov.u32 %r10, %r9;\nmov.u32 %r11, 0;"
    };
    let body = format!(
        "{instruction}\n{store}\nsetp.gt.u32 %p3, %r1, 31;\nselp.b32 %r12, %r11, %r10, %p3;\nst.global.u32 [%rd5], %r12;\nret;"
    );
    let words = run(&body).unwrap();
    u64::from(words[0]) | (u64::from(words[63]) << 32)
}

#[test]
fn instructions_do_what_the_manual_says() {
    for (instruction, expected) in [
        ("mov.u64 %rd8, -1;\nmul.hi.u64 %rd9, %rd8, %rd8;", u64::MAX - 1),
        ("mov.u64 %rd8, -1;\nmul.hi.s64 %rd9, %rd8, %rd8;", 0),
        ("mov.u32 %r8, 4294967295;\nmul.wide.u32 %rd9, %r8, %r8;", 0xffff_fffe_0000_0001),
        ("mov.u32 %r8, -3;\nmul.wide.s32 %rd9, %r8, 5;", (-15_i64) as u64),
        ("mov.u32 %r8, -3;\nmov.u64 %rd8, 20;\nmad.wide.s32 %rd9, %r8, 5, %rd8;", 5),
        ("mov.u32 %r8, 7;\nmad.lo.s32 %r9, %r8, 6, %r8;", 49),
        ("mov.u64 %rd8, 1;\nshl.b64 %rd9, %rd8, 63;", 1 << 63),
        ("mov.u64 %rd8, 1;\nshl.b64 %rd9, %rd8, 64;", 0),
        ("mov.u64 %rd8, -16;\nshr.s64 %rd9, %rd8, 2;", (-4_i64) as u64),
        ("mov.u64 %rd8, -1;\nshr.s64 %rd9, %rd8, 200;", u64::MAX),
        ("mov.u64 %rd8, -1;\nshr.u64 %rd9, %rd8, 63;", 1),
        ("mov.u32 %r8, -1;\ncvt.s64.s32 %rd9, %r8;", u64::MAX),
        ("mov.u32 %r8, -1;\ncvt.u64.u32 %rd9, %r8;", 0xffff_ffff),
        ("mov.u32 %r8, 0x01020304;\nprmt.b32 %r9, %r8, 0, 291;", 0x0403_0201),
        ("mov.u32 %r8, 0x80;\nprmt.b32 %r9, %r8, 0, 0x8888;", 0xffff_ffff),
        ("mov.u32 %r8, 0x12345678;\nshf.l.wrap.b32 %r9, %r8, %r8, 8;", 0x3456_7812),
        ("mov.u32 %r8, 0x12345678;\nshf.r.wrap.b32 %r9, %r8, 0, 36;", 0x0123_4567),
        ("mov.u32 %r8, 0x12345678;\nshf.l.clamp.b32 %r9, %r8, 0, 99;", 0x1234_5678),
        ("mov.u32 %r8, 0x12345678;\nbfe.u32 %r9, %r8, 8, 12;", 0x456),
        ("mov.u32 %r8, -2;\nmin.s32 %r9, %r8, 1;", 0xffff_fffe),
        ("mov.u32 %r8, -2;\nmin.u32 %r9, %r8, 1;", 1),
        ("mov.u32 %r8, -2;\nmax.s32 %r9, %r8, 1;", 1),
        ("mov.u32 %r8, 5;\nneg.s32 %r9, %r8;", 0xffff_fffb),
        ("mov.u32 %r8, 5;\nnot.b32 %r9, %r8;", 0xffff_fffa),
        ("mov.u32 %r8, -2;\nsetp.lt.s32 %p1, %r8, 1;\nselp.b32 %r9, 10, 20, %p1;", 10),
        ("mov.u32 %r8, -2;\nsetp.lt.u32 %p1, %r8, 1;\nselp.b32 %r9, 10, 20, %p1;", 20),
        ("mov.b64 %rd9, {%r1, %r1};", 63 << 32),
        ("mov.u64 %rd8, 0x500000007;\n{ .reg .b32 t; mov.b64 {t, %r9}, %rd8; }", 5),
        ("mov.u32 %r9, 1;\n{\n.reg .b32 %r9;\nmov.u32 %r9, 2;\n}", 1),
        ("mov.u32 %r9, 1;\nsetp.eq.u32 %p1, %r9, 1;\n@!%p1 mov.u32 %r9, 2;", 1),
    ] {
        assert_eq!(result(instruction), expected, "{instruction}");
    }
}

/// A driver in a state to work, with a stream, pinned memory and device memory of 256 bytes each.
fn ready() -> (Driver, u64, usize, u64) {
    let mut driver = Driver::new(Settings::default());
    driver.initialised = true;
    let stream = driver.create_stream();
    let pinned = driver.pin(256).unwrap();
    let device = driver.memory.allocate(256).unwrap();
    (driver, stream, pinned, device)
}

fn at(address: usize) -> &'static mut [u8] {
    // SAFETY: 256 bytes of pinned memory, which the driver of the test keeps, and the test looks at in one place at a time.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), 256) }
}

#[test]
fn who_does_not_wait_sees_what_was_there_before() {
    let (mut driver, stream, pinned, device) = ready();
    let back = driver.pin(256).unwrap();
    at(back).fill(9);
    at(pinned).fill(1);
    driver.upload(stream, device, pinned, 256).unwrap();
    driver.download(stream, back, device, 256).unwrap();
    assert_eq!(at(back)[0], 9, "nothing ran yet");
    // Filled again before the copy out of it was waited for.
    at(pinned).fill(2);
    driver.finish(stream).unwrap();
    assert_eq!(at(back)[0], 2, "the copy took what was there when it ran");
}

#[test]
fn streams_do_not_wait_for_each_other() {
    let (mut driver, stream, pinned, device) = ready();
    let other = driver.create_stream();
    driver.upload(stream, device, pinned, 256).unwrap();
    let back = driver.pin(256).unwrap();
    driver.download(other, back, device, 256).unwrap();
    assert_eq!(driver.finish(other), Err(driver::ILLEGAL_ADDRESS), "the other stream has not written it");
    assert_eq!(
        driver.enter("cuMemAlloc_v2"),
        Err(driver::ILLEGAL_ADDRESS),
        "and that is the end of the context"
    );
}

#[test]
fn memory_in_use_and_memory_that_is_not_pinned_are_noticed() {
    let (mut driver, stream, pinned, device) = ready();
    driver.upload(stream, device, pinned, 256).unwrap();
    assert_eq!(driver.free(device), Err(driver::INVALID_VALUE));
    assert_eq!(driver.unpin(pinned), Err(driver::INVALID_VALUE));
    let pageable = [0_u8; 16];
    let outcome = driver.upload(stream, device, pageable.as_ptr().expose_provenance(), 16);
    assert_eq!(outcome, Err(driver::INVALID_VALUE));
    assert_eq!(driver.wrongs.len(), 3);
    driver.finish(stream).unwrap();
    driver.free(device).unwrap();
    driver.unpin(pinned).unwrap();
    driver.destroy_stream(stream).unwrap();
    assert!(driver.left().iter().all(|(_, number)| *number == 0), "{:?}", driver.left());
}

#[test]
fn calls_fail_where_the_settings_say_so() {
    let mut driver = Driver::new(Settings::parse("cuMemAlloc_v2@2=2,cuLaunchKernel=719"));
    assert_eq!(driver.enter("cuMemAlloc_v2"), Err(driver::NOT_INITIALIZED));
    driver.initialised = true;
    assert_eq!(driver.enter("cuMemAlloc_v2"), Err(driver::OUT_OF_MEMORY), "the second call");
    assert_eq!(driver.enter("cuMemAlloc_v2"), Ok(()));
    assert_eq!(driver.enter("cuLaunchKernel"), Err(driver::LAUNCH_FAILED));
    assert_eq!(driver.enter("cuMemAlloc_v2"), Err(driver::LAUNCH_FAILED), "it is sticky");
}

#[test]
fn kernels_that_the_driver_or_the_device_is_too_old_for_are_refused() {
    let text = kernel("ret;");
    let load = |settings: &str, text: &str| Driver::new(Settings::parse(settings)).load(text).map(drop);
    assert_eq!(load("", &text), Ok(()));
    assert_eq!(load("driver=8000", &text), Err(driver::UNSUPPORTED_PTX));
    assert_eq!(load("capability=61", &text), Err(driver::NO_BINARY));
    assert_eq!(load("", &text.replace("ret;", "exit;")), Err(driver::INVALID_PTX));
}

#[test]
fn a_launch_of_more_threads_than_the_kernel_allows_is_refused() {
    let (mut driver, stream, ..) = ready();
    let module = driver.load(&kernel("ret;")).unwrap();
    assert_eq!(driver.function(module, "nothing"), Err(driver::NOT_FOUND));
    let function = driver.function(module, "planted").unwrap();
    let launch = |blocks, threads| Launch { blocks, threads, parameters: vec![0; 16] };
    assert_eq!(driver.launch(stream, function, launch(1, 65)), Err(driver::INVALID_VALUE));
    assert_eq!(driver.launch(stream, function, launch(0, 64)), Err(driver::INVALID_VALUE));
    assert_eq!(driver.launch(stream, function, launch(1, 64)), Ok(()));
}
