// An endpoint in Rust: anything that exports C symbols can be one. Only what is used is declared.
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_uint, c_void};

#[repr(C)]
pub struct Context {
    _opaque: [u8; 0],
}

extern "C" {
    fn kiln_content_type(ctx: *mut Context, content_type: *const c_char) -> c_int;
    fn kiln_query_get(ctx: *mut Context, name: *const c_char) -> *const c_char;
    fn kiln_write(ctx: *mut Context, data: *const c_void, length: usize) -> c_int;
}

// The stamp of a module: magic, SDK major and minor version, flags.
#[no_mangle]
#[allow(non_upper_case_globals)]
pub static kiln_module_abi: [c_uint; 4] = [0x4b49_4c4e, 1, 0, 0];

fn reversed(text: &str) -> String {
    text.chars().rev().collect::<String>() + "\n"
}

/// Called by the server for every request, with a context that is valid during the call.
#[no_mangle]
pub unsafe extern "C" fn kiln_run(ctx: *mut Context, _path: *const c_char) -> c_int {
    let text = kiln_query_get(ctx, b"text\0".as_ptr().cast());
    let answer = if text.is_null() {
        String::from("try ?text=something\n")
    } else {
        reversed(&CStr::from_ptr(text).to_string_lossy())
    };
    kiln_content_type(ctx, b"text/plain; charset=utf-8\0".as_ptr().cast());
    kiln_write(ctx, answer.as_ptr().cast(), answer.len())
}
