;; Puts a string into the module's memory, with a zero behind it, and answers where that ends.
(func $zero-ended (param $to i32) (param $from i32) (param $n i32) (result i32)
  (call $put (local.get $to) (local.get $from) (local.get $n))
  (local.set $to (i32.add (local.get $to) (local.get $n)))
  (call $store8 (local.get $to) (i32.const 0))
  (i32.add (local.get $to) (i32.const 1)))
