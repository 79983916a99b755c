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
    #[cfg(wasmplane_component)]
    place: [u32; 4], // where a component's answer stands
}

impl Runtime {
    /// The state before anything was called.
    pub const fn new() -> Runtime {
        Runtime {
            plugin: None,
            input: Vec::new(),
            answer: Vec::new(),
            rows: Vec::new(),
            #[cfg(wasmplane_component)]
            place: [0; 4],
        }
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
        let result = self.answer(make, op, data);
        self.input = input;
        self.give(result)
    }

    /// What an operation answers.
    fn answer(&mut self, make: fn() -> Plugin, op: i32, data: &[u8]) -> Result<Vec<u8>, String> {
        let result = if op == TABLE { self.judge(make, data) } else { self.plugin(make).call(op, data) };
        if op == SETTINGS && result.is_ok() {
            self.plugin = Some(make());
        }
        let failed = unsafe { (*FAILURE.0.get()).take() };
        failed.map_or(result, Err)
    }

    /// The export `describe` of a component: where a text and its length stand.
    #[cfg(wasmplane_component)]
    pub fn describe_component(&mut self, make: fn() -> Plugin) -> *const u32 {
        self.plugin = Some(make());
        self.answer = self.plugin(make).describe();
        self.place = [self.answer.as_ptr() as usize as u32, self.answer.len() as u32, 0, 0];
        self.place.as_ptr()
    }

    /// The export `call` of a component. The input was allocated by `realloc`, and is freed. The answer is a
    /// result<option<list<u8>>, string> in the layout of the component model.
    ///
    /// # Safety
    /// The input has to be what the host put there.
    #[cfg(wasmplane_component)]
    pub unsafe fn call_component(&mut self, make: fn() -> Plugin, op: i32, at: *mut u8, len: usize) -> *const u32 {
        let data = if len == 0 { &[] } else { core::slice::from_raw_parts(at, len) };
        let result = self.answer(make, op, data);
        component::free(at, len);
        let failed = result.is_err();
        self.answer = result.unwrap_or_else(String::into_bytes);
        let (start, len) = (self.answer.as_ptr() as usize as u32, self.answer.len() as u32);
        self.place = if failed { [1, start, len, 0] } else { [0, (len > 0) as u32, start, len] };
        self.place.as_ptr()
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

/// What a component has instead of the exports of a module: memory for the host, and the host's function.
#[cfg(wasmplane_component)]
pub mod component {
    use alloc::{string::String, vec::Vec};
    use core::alloc::Layout;

    // Everything is as aligned as the flat table wants it.
    fn layout(len: usize) -> Layout {
        unsafe { Layout::from_size_align_unchecked(len, 8) }
    }

    /// Memory for the host, as the component model asks for it.
    ///
    /// # Safety
    /// What is there already has to be this function's.
    pub unsafe fn realloc(old: *mut u8, old_len: usize, new_len: usize) -> *mut u8 {
        if new_len == 0 {
            return 8 as *mut u8;
        }
        if old_len == 0 { alloc::alloc::alloc(layout(new_len)) } else { alloc::alloc::realloc(old, layout(old_len), new_len) }
    }

    pub(super) unsafe fn free(at: *mut u8, len: usize) {
        if len > 0 {
            alloc::alloc::dealloc(at, layout(len));
        }
    }

    #[link(wasm_import_module = "wasmplane:plugin/host@1.0.0")]
    extern "C" {
        #[link_name = "call"]
        fn host_call(op: *const u8, op_len: usize, input: *const u8, input_len: usize, place: *mut u32);
    }

    #[link(wasm_import_module = "wasi:cli/stderr@0.2.0")]
    extern "C" {
        #[link_name = "get-stderr"]
        fn get_stderr() -> i32;
    }

    #[link(wasm_import_module = "wasi:io/streams@0.2.0")]
    extern "C" {
        #[link_name = "[method]output-stream.blocking-write-and-flush"]
        fn write(stream: i32, start: *const u8, len: usize, place: *mut u32);
        #[link_name = "[resource-drop]output-stream"]
        fn drop_stream(stream: i32);
    }

    pub(super) fn print(text: &str) {
        let mut place = [0u32; 3]; // a result: nothing, or why not, which nobody could be told
        unsafe {
            let stream = get_stderr();
            write(stream, text.as_ptr(), text.len(), place.as_mut_ptr());
            drop_stream(stream);
        }
    }

    unsafe fn taken(at: u32, len: u32) -> Vec<u8> {
        let out = if len == 0 { Vec::new() } else { core::slice::from_raw_parts(at as usize as *const u8, len as usize).to_vec() };
        free(at as usize as *mut u8, len as usize);
        out
    }

    pub(super) fn call(function: &str, input: &[u8]) -> Result<Vec<u8>, String> {
        let mut place = [0u32; 4]; // a result: a list, or a variant with a text
        unsafe {
            host_call(function.as_ptr(), function.len(), input.as_ptr(), input.len(), place.as_mut_ptr());
            if place[0] & 0xff == 0 {
                return Ok(taken(place[1], place[2]));
            }
            Err(String::from_utf8_lossy(&taken(place[2], place[3])).into_owned())
        }
    }
}

/// Calls a host function that the operator granted, such as `log`.
#[cfg(wasmplane_component)]
pub fn host_call(function: &str, input: &[u8]) -> Result<Vec<u8>, String> {
    component::call(function, input)
}

#[cfg(all(target_arch = "wasm32", not(wasmplane_component)))]
mod host {
    #[link(wasm_import_module = "wasmplane")]
    extern "C" {
        pub fn call(op: *const u8, op_len: usize, input: *const u8, input_len: usize, out: *mut u8, out_cap: usize) -> i64;
    }
}

/// Calls a host function that the operator granted, such as `log`.
#[cfg(all(target_arch = "wasm32", not(wasmplane_component)))]
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

#[cfg(all(target_arch = "wasm32", not(wasmplane_component)))]
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
#[cfg(all(target_arch = "wasm32", not(wasmplane_component)))]
pub fn print(text: &str) {
    let mut written = 0;
    let bytes = wasi::Ciovec { start: text.as_ptr(), length: text.len() };
    // The host checks every pointer against this module's memory.
    let _ = unsafe { wasi::fd_write(2, &bytes, 1, &mut written) };
}

/// Writes to standard error, in a component.
#[cfg(wasmplane_component)]
pub fn print(text: &str) {
    component::print(text)
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
        $crate::exports!($plugin, $speak);
    };
}

/// The exports of a module. A module has one thread, and the host makes one call at a time.
#[cfg(not(wasmplane_component))]
#[doc(hidden)]
#[macro_export]
macro_rules! exports {
    ($plugin:path, $speak:ident) => {
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

/// The exports of a module that `wasmplane plugin build --component` makes a component of.
#[cfg(wasmplane_component)]
#[doc(hidden)]
#[macro_export]
macro_rules! exports {
    ($plugin:path, $speak:ident) => {
        #[no_mangle]
        pub unsafe extern "C" fn cabi_realloc(old: *mut u8, old_len: usize, _align: usize, new_len: usize) -> *mut u8 {
            $crate::runtime::component::realloc(old, old_len, new_len)
        }
        #[export_name = "describe"]
        pub extern "C" fn wasmplane_describe() -> *const u32 {
            $speak();
            unsafe { (*core::ptr::addr_of_mut!(WASMPLANE)).describe_component($plugin) }
        }
        #[export_name = "call"]
        pub unsafe extern "C" fn wasmplane_call(op: i32, at: *mut u8, len: usize) -> *const u32 {
            $speak();
            (*core::ptr::addr_of_mut!(WASMPLANE)).call_component($plugin, op, at, len)
        }
    };
}
