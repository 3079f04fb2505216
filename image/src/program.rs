//! What the ELF header of a program says: whether it runs in an image that has no other file of a system.

/// The machines that images are made for, by ELF's number (`e_machine`) and by Go's name.
const MACHINES: [(u64, &str); 2] = [(62, "amd64"), (183, "arm64")];
/// The type of the program header that names a dynamic linker.
const PT_INTERP: u64 = 3;

/// The architecture of a static program for Linux, by Go's name of it.
///
/// # Errors
/// Why no container could run it.
pub fn architecture_of(program: &[u8]) -> Result<&'static str, String> {
    // A little-endian field.
    let field = |at: u64, size: usize| {
        let rest = program.get(usize::try_from(at).ok()?..)?;
        let bytes = rest.get(..size)?.iter().rev();
        Some(bytes.fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    // 64 bits, little-endian, by the ABI of System V or of GNU.
    if !matches!(program, [0x7f, b'E', b'L', b'F', 2, 1, 1, 0 | 3, ..]) {
        return Err("it is no program for Linux with 64 bits".to_owned());
    }
    let headers = || Some((field(18, 2)?, field(32, 8)?, field(54, 2)?, field(56, 2)?));
    let (machine, start, size, count) = headers().ok_or("it is cut off")?;
    let architecture = MACHINES.iter().find(|(number, _)| *number == machine);
    let (_, architecture) =
        architecture.ok_or("it is for a machine that is neither amd64 nor arm64")?;
    for place in 0..count {
        let kind = field(start.saturating_add(place * size), 4).ok_or("it is cut off")?;
        if kind == PT_INTERP {
            return Err("it is not static".to_owned());
        }
    }
    Ok(architecture)
}
