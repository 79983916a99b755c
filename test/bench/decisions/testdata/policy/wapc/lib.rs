//! The image-policy plugin as a policy of Kubewarden: a waPC guest, written against the
//! protocol, that is given the whole review, as JSON, and answers the whole object.
use wasmplane::{parse, Json};

#[link(wasm_import_module = "wapc")]
extern "C" {
    fn __guest_request(op: *mut u8, payload: *mut u8);
    fn __guest_response(at: *const u8, len: usize);
    fn __guest_error(at: *const u8, len: usize);
}

#[no_mangle]
pub extern "C" fn __guest_call(op_len: usize, payload_len: usize) -> i32 {
    let (mut op, mut payload) = (vec![0u8; op_len], vec![0u8; payload_len]);
    unsafe { __guest_request(op.as_mut_ptr(), payload.as_mut_ptr()) };
    match answer(&op, &payload) {
        Ok(out) => unsafe { __guest_response(out.as_ptr(), out.len()) },
        Err(e) => {
            unsafe { __guest_error(e.as_ptr(), e.len()) };
            return 0;
        }
    }
    1
}

fn answer(op: &[u8], payload: &[u8]) -> Result<Vec<u8>, String> {
    match op {
        b"protocol_version" => Ok(b"\"v1\"".to_vec()),
        b"validate_settings" => Ok(b"{\"valid\":true}".to_vec()),
        b"validate" => validate(parse(payload)?),
        _ => Err("unknown operation".into()),
    }
}

fn validate(review: Json) -> Result<Vec<u8>, String> {
    let object = review.get("request").get("object");
    let mut out = Vec::new();
    if let Some(message) = refusal(object.get("spec")) {
        Json::object([("accepted", false.into()), ("message", message.into())]).write(&mut out);
        return Ok(out);
    }
    let mut answer = vec![("accepted".to_string(), Json::from(true))];
    if review.get("settings").get("label").bool() && object.get("metadata").get("labels").get("checked").str().is_empty() {
        answer.push(("mutated_object".to_string(), labelled(object)));
    }
    Json::Object(answer).write(&mut out);
    Ok(out)
}

fn refusal(spec: &Json) -> Option<String> {
    for c in spec.get("containers").items().iter().chain(spec.get("initContainers").items()) {
        let image = c.get("image").str();
        let name = image.rsplit('/').next().unwrap_or("");
        if !(name.contains('@') || name.contains(':') && !name.ends_with(":latest")) {
            return Some(["image ", image, " has no fixed tag"].concat());
        }
        if c.get("securityContext").get("privileged").bool() {
            return Some("a container is privileged".into());
        }
    }
    None
}

/// The object with the label more.
fn labelled(object: &Json) -> Json {
    let mut object = object.clone();
    let labels = entry(entry(&mut object, "metadata"), "labels");
    *entry(labels, "checked") = "yes".into();
    object
}

/// The value of a key, which is made where it is missing.
fn entry<'a>(of: &'a mut Json, key: &str) -> &'a mut Json {
    if !matches!(of, Json::Object(_)) {
        *of = Json::Object(Vec::new());
    }
    match of {
        Json::Object(entries) => {
            let at = entries.iter().position(|(k, _)| k == key).unwrap_or(entries.len());
            if at == entries.len() {
                entries.push((key.to_string(), Json::Null));
            }
            &mut entries[at].1
        }
        _ => unreachable!(),
    }
}
