// SPDX-License-Identifier: Apache-2.0

//! The module's exports, and calls of the host.

use crate::abi::{SETTINGS, TABLE};
use crate::plugin::Plugin;
use alloc::{string::String, vec::Vec};

/// Why the call that runs fails, once it is known.
struct Failure(core::cell::UnsafeCell<Option<String>>);

// A module has one thread, and the host makes one call at a time.
unsafe impl Sync for Failure {}

static FAILURE: Failure = Failure(core::cell::UnsafeCell::new(None));

/// Makes the call that runs fail, whatever its hook answers: the failure policy of the plugin's entry
/// decides then. It is for what a hook cannot go on without, an object that the host does not give for example.
pub fn fail(message: &str) {
    unsafe { *FAILURE.0.get() = Some(String::from(message)) }
}

/// The state of a module. There is one, and one call at a time: a module has no threads.
pub struct Runtime {
    plugin: Option<Plugin>,
    input: Vec<u64>, // of words, so that the flat table is aligned
    answer: Vec<u8>,
    rows: Vec<i64>,
}

impl Runtime {
    /// The state before anything was called.
    pub const fn new() -> Runtime {
        Runtime { plugin: None, input: Vec::new(), answer: Vec::new(), rows: Vec::new() }
    }

    fn plugin(&mut self, make: fn() -> Plugin) -> &Plugin {
        self.plugin.get_or_insert_with(make)
    }

    /// The export `alloc`.
    pub fn alloc(&mut self, len: i32) -> i32 {
        if len <= 0 {
            return 0;
        }
        let words = (len as usize + 7) / 8;
        if self.input.len() < words {
            self.input.resize(words.max(512), 0);
        }
        self.input.as_ptr() as usize as i32
    }

    fn give(&mut self, result: Result<Vec<u8>, String>) -> i64 {
        let failed = result.is_err();
        self.answer = result.unwrap_or_else(String::into_bytes);
        let len = self.answer.len() as u64 | if failed { 1 << 31 } else { 0 };
        ((self.answer.as_ptr() as usize as u64) << 32 | len) as i64
    }

    /// The export `describe`. Settings may have changed what there is to say.
    pub fn describe(&mut self, make: fn() -> Plugin) -> i64 {
        self.plugin = Some(make());
        let manifest = self.plugin(make).describe();
        self.give(Ok(manifest))
    }

    /// The export `call`.
    pub fn call(&mut self, make: fn() -> Plugin, op: i32, len: i32) -> i64 {
        let len = (len.max(0) as usize).min(self.input.len() * 8);
        let input = core::mem::take(&mut self.input);
        // The words were allocated as such; reading them as bytes is always sound.
        let data = unsafe { core::slice::from_raw_parts(input.as_ptr() as *const u8, len) };
        let result = if op == TABLE { self.judge(make, data) } else { self.plugin(make).call(op, data) };
        if op == SETTINGS && result.is_ok() {
            self.plugin = Some(make());
        }
        self.input = input;
        let failed = unsafe { (*FAILURE.0.get()).take() };
        self.give(failed.map_or(result, Err))
    }

    fn judge(&mut self, make: fn() -> Plugin, data: &[u8]) -> Result<Vec<u8>, String> {
        let mut out = core::mem::take(&mut self.answer);
        let rows = core::mem::take(&mut self.rows);
        let result = match &self.plugin(make).table {
            None => Err(String::from("the plugin has no node table")),
            Some(t) => {
                let mut words = data.chunks_exact(8).map(|b| i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]));
                let n = words.next().unwrap_or(0) as usize;
                let pod: Vec<i64> = words.collect();
                out.clear();
                let width = t.columns.len();
                (t.judge)(&pod, &rows[..(n * width).min(rows.len())], width, &mut out);
                Ok(out)
            }
        };
        self.rows = rows;
        result
    }

    /// The export `reserve`: room for some rows of the node table.
    pub fn reserve(&mut self, make: fn() -> Plugin, rows: i32) -> i32 {
        let width = self.plugin(make).table.as_ref().map_or(0, |t| t.columns.len());
        let need = width * rows.max(0) as usize;
        if self.rows.len() < need {
            self.rows.resize(need, 0);
        }
        self.rows.as_ptr() as usize as i32
    }
}

impl Default for Runtime {
    fn default() -> Runtime {
        Runtime::new()
    }
}

#[cfg(target_arch = "wasm32")]
mod host {
    #[link(wasm_import_module = "wasmplane")]
    extern "C" {
        pub fn call(op: *const u8, op_len: usize, input: *const u8, input_len: usize, out: *mut u8, out_cap: usize) -> i64;
    }
}

/// Calls a host function that the operator granted, such as `log`.
#[cfg(target_arch = "wasm32")]
pub fn host_call(function: &str, input: &[u8]) -> Result<Vec<u8>, String> {
    let mut out: Vec<u8> = alloc::vec![0; 1024];
    // The host checks every pointer against this module's memory.
    let mut n = unsafe { host::call(function.as_ptr(), function.len(), input.as_ptr(), input.len(), out.as_mut_ptr(), out.len()) };
    let failed = n < 0;
    if failed || n as usize > out.len() {
        // An empty name gives the last reply again, and its length.
        n = unsafe { host::call(core::ptr::null(), 0, core::ptr::null(), 0, core::ptr::null_mut(), 0) };
        out.resize(n as usize, 0);
        n = unsafe { host::call(core::ptr::null(), 0, core::ptr::null(), 0, out.as_mut_ptr(), out.len()) };
    }
    out.truncate(n as usize);
    if failed {
        return Err(String::from_utf8_lossy(&out).into_owned());
    }
    Ok(out)
}

/// Calls a host function; outside of a plugin there is no host.
#[cfg(not(target_arch = "wasm32"))]
pub fn host_call(_function: &str, _input: &[u8]) -> Result<Vec<u8>, String> {
    Err(String::from("there is no host"))
}

/// Writes a line to the host's log; the plugin needs `log`.
pub fn log(message: &str) {
    let mut record = Vec::new();
    crate::json::Json::object([("level", "INFO".into()), ("message", message.into())]).write(&mut record);
    let _ = host_call("log", &record); // a log that is not granted is no failure
}

#[cfg(target_arch = "wasm32")]
mod wasi {
    /// Bytes to be written, in WASI's layout.
    #[repr(C)]
    pub struct Ciovec {
        pub start: *const u8,
        pub length: usize,
    }

    #[link(wasm_import_module = "wasi_snapshot_preview1")]
    extern "C" {
        pub fn fd_write(fd: i32, vectors: *const Ciovec, count: usize, written: *mut usize) -> i32;
    }
}

/// Writes to standard error, which goes to the host's log and into the error of a call that fails.
#[cfg(target_arch = "wasm32")]
pub fn print(text: &str) {
    let mut written = 0;
    let bytes = wasi::Ciovec { start: text.as_ptr(), length: text.len() };
    // The host checks every pointer against this module's memory.
    let _ = unsafe { wasi::fd_write(2, &bytes, 1, &mut written) };
}

/// Writes to standard error; outside of a plugin there is none.
#[cfg(not(target_arch = "wasm32"))]
pub fn print(_text: &str) {}

/// Makes the function that describes the plugin, and its hooks, the exports of the module. A
/// panic's words and place are part of the error. A crate without `std` says
/// `export!(plugin, no_std)` and brings a panic handler of its own.
#[macro_export]
macro_rules! export {
    ($plugin:path) => {
        static mut WASMPLANE_SPEAKS: bool = false;
        // The target's own hook has nowhere to print to.
        fn wasmplane_speak() {
            if unsafe { core::mem::replace(&mut *core::ptr::addr_of_mut!(WASMPLANE_SPEAKS), true) } {
                return;
            }
            ::std::panic::set_hook(::std::boxed::Box::new(|info| $crate::runtime::print(&::std::format!("{}\n", info))));
        }
        $crate::export!($plugin, wasmplane_speak);
    };
    ($plugin:path, no_std) => {
        fn wasmplane_speak() {}
        $crate::export!($plugin, wasmplane_speak);
    };
    ($plugin:path, $speak:ident) => {
        static mut WASMPLANE: $crate::runtime::Runtime = $crate::runtime::Runtime::new();
        // A module has one thread, and the host makes one call at a time.
        #[no_mangle]
        pub extern "C" fn describe() -> i64 {
            $speak();
            unsafe { (*core::ptr::addr_of_mut!(WASMPLANE)).describe($plugin) }
        }
        #[no_mangle]
        pub extern "C" fn alloc(len: i32) -> i32 {
            $speak();
            unsafe { (*core::ptr::addr_of_mut!(WASMPLANE)).alloc(len) }
        }
        #[no_mangle]
        pub extern "C" fn call(op: i32, _at: i32, len: i32) -> i64 {
            unsafe { (*core::ptr::addr_of_mut!(WASMPLANE)).call($plugin, op, len) }
        }
        #[no_mangle]
        pub extern "C" fn reserve(rows: i32) -> i32 {
            $speak();
            unsafe { (*core::ptr::addr_of_mut!(WASMPLANE)).reserve($plugin, rows) }
        }
    };
}
