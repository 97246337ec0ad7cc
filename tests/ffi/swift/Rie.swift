// RIE through its C ABI, include/rie.h and include/module.modulemap.
//
// Ownership: each object owns a handle and frees it in deinit, in any order; a session keeps its model alive.
// Errors: a failed call throws RieError; its object is as it was.
// Threads: a Model may be shared freely. Anything else takes one call at a time, from any thread; a second one throws
// RIE_ERR_BUSY and changes nothing, which is why all of them are Sendable. Session.cancel may come at any time.
import CRie

public typealias Token = rie_token

/// What a failed call throws.
public struct RieError: Error, CustomStringConvertible {
    /// One of RIE_ERR_*.
    public let status: rie_status
    /// Names the thing at fault.
    public let message: String

    /// The status as rie.h spells it.
    public var name: String { String(cString: rie_status_name(status)) }
    public var description: String { "\(name): \(message)" }
}

/// Makes a call with an error object of its own, so that objects may be used from any thread.
@discardableResult
func call(allowing allowed: rie_status = RIE_OK, _ body: (OpaquePointer?) -> rie_status) throws -> rie_status {
    let error = rie_error_new()
    defer { rie_free(error.map { UnsafeMutableRawPointer($0) }) }
    let status = body(error)
    if status < 0 && status != allowed {
        throw RieError(status: status, message: String(cString: rie_error_message(error)))
    }
    return status
}

typealias Read<Element> = (UnsafeMutablePointer<Element>?, Int, UnsafeMutablePointer<Int>, OpaquePointer?) -> rie_status

/// What a call writes, in a buffer that is made larger until it fits.
func fill<Element>(_ room: Int, _ zero: Element, _ read: Read<Element>) throws -> [Element] {
    var length = room
    while true {
        var buffer = [Element](repeating: zero, count: length)
        let status = try call(allowing: RIE_ERR_BUFFER_TOO_SMALL) { error in
            buffer.withUnsafeMutableBufferPointer { read($0.baseAddress, $0.count, &length, error) }
        }
        if status == RIE_OK {
            return Array(buffer.prefix(length))
        }
    }
}

func text(_ room: Int, _ read: Read<CChar>) throws -> String {
    String(decoding: try fill(room, 0, read).map { UInt8(truncatingIfNeeded: $0) }, as: UTF8.self)
}

/// What all objects share: a handle, freed in deinit.
public class Object: @unchecked Sendable {
    let handle: OpaquePointer

    init(_ make: (UnsafeMutablePointer<OpaquePointer?>, OpaquePointer?) -> rie_status) throws {
        var made: OpaquePointer?
        try call { make(&made, $0) }
        handle = made! // written by every call that succeeds
    }

    deinit { rie_free(UnsafeMutableRawPointer(handle)) }

    /// The fact with the key RIE_INFO_*.
    public func int(_ key: Int32) throws -> Int64 {
        var value: Int64 = 0
        try call { rie_get_int(UnsafeRawPointer(handle), key, &value, $0) }
        return value
    }

    /// The text with the key RIE_INFO_*.
    public func string(_ key: Int32) throws -> String {
        try text(64) { rie_get_str(UnsafeRawPointer(handle), key, $0, $1, $2, $3) }
    }
}

/// Options by the keys RIE_OPT_*, for loads, sessions and samplers, each of which copies those that concern it.
public final class Options: Object, @unchecked Sendable {
    public init() throws {
        try super.init { made, _ in
            made.pointee = rie_options_new()
            return made.pointee == nil ? RIE_ERR_NO_MEMORY : RIE_OK
        }
    }

    public func set(_ key: Int32, _ value: Int64) throws {
        try call { rie_options_set_int(handle, key, value, $0) }
    }

    public func set(_ key: Int32, _ value: Double) throws {
        try call { rie_options_set_float(handle, key, value, $0) }
    }

    public func set(_ key: Int32, _ value: String) throws {
        try call { rie_options_set_str(handle, key, value, $0) }
    }
}

/// A loaded model. Any number of threads may use it.
public final class Model: Object, @unchecked Sendable {
    /// Loads a Hugging Face directory or a .safetensors file.
    public init(_ path: String, _ options: Options? = nil) throws {
        try super.init { rie_model_load(path, options?.handle, $0, $1) }
    }

    /// Describes the model at a path as JSON, without mapping its weights.
    public static func inspect(_ path: String) throws -> String {
        try text(1 << 14) { rie_inspect(path, nil, $0, $1, $2, $3) }
    }

    public func tokenize(_ string: String, flags: Int32 = RIE_TEXT_ADD_SPECIAL) throws -> [Token] {
        let count = string.utf8.count
        return try fill(count + 16, 0) { rie_tokenize(handle, string, count, UInt32(flags), $0, $1, $2, $3) }
    }

    public func detokenize(_ tokens: [Token], flags: Int32 = 0) throws -> String {
        try text(8 * tokens.count) { rie_detokenize(handle, tokens, tokens.count, UInt32(flags), $0, $1, $2, $3) }
    }
}

/// Chooses tokens from logits. One call at a time.
public final class Sampler: Object, @unchecked Sendable {
    public init(_ options: Options) throws {
        try super.init { rie_sampler_new(options.handle, $0, $1) }
    }
}

/// Turns tokens into text as they come, never cutting a character. One call at a time.
public final class TextStream: Object, @unchecked Sendable {
    public init(_ model: Model, flags: Int32 = RIE_TEXT_SKIP_SPECIAL) throws {
        try super.init { rie_text_stream_new(model.handle, UInt32(flags), $0, $1) }
    }

    /// The text that the next token makes certain.
    public func push(_ token: Token) throws -> String {
        try text(64) { rie_text_stream_push(handle, token, $0, $1, $2, $3) }
    }

    /// What is held back at the end; the stream is then as new.
    public func flush() throws -> String { try push(-1) }
}

/// A sequence of tokens and what is computed of it. One call at a time, except `cancel`.
public final class Session: Object, @unchecked Sendable {
    public init(_ model: Model, _ options: Options? = nil) throws {
        try super.init { rie_session_new(model.handle, options?.handle, $0, $1) }
    }

    private init(forkOf session: Session) throws {
        try super.init { rie_session_fork(session.handle, $0, $1) }
    }

    /// Queues tokens; computes nothing.
    public func append(_ tokens: [Token]) throws {
        try call { rie_session_append(handle, tokens, tokens.count, $0) }
    }

    /// Evaluates all that is queued.
    public func eval() throws {
        try call { rie_session_eval(handle, 0, $0) }
    }

    /// The next token, the likeliest without a sampler; nil where generation ends.
    public func step(_ sampler: Sampler? = nil) throws -> Token? {
        var token: Token = 0
        return try call { rie_decode_step(handle, sampler?.handle, &token, $0) } == RIE_OK ? token : nil
    }

    /// The next tokens as pieces of text, each made when it is asked for. Ends with the task that reads it, in the middle
    /// of a step if need be.
    public func text(_ stream: TextStream, count: Int, sampler: Sampler? = nil) -> AsyncThrowingStream<String, Error> {
        var left = count
        var flushed = false
        return AsyncThrowingStream(unfolding: {
            defer { if Task.isCancelled { self.cancel(false) } }
            return try await withTaskCancellationHandler { () -> String? in
                if left > 0, let token = try self.step(sampler) {
                    left -= 1
                    return try stream.push(token)
                }
                left = 0
                if flushed {
                    return nil
                }
                flushed = true
                return try stream.flush()
            } onCancel: {
                self.cancel()
            }
        })
    }

    /// A session with the same tokens and options that shares what is computed.
    public func fork() throws -> Session { try Session(forkOf: self) }

    /// The session as bytes for `load`, in this process or another.
    public func save() throws -> [UInt8] {
        try fill(0, 0) { rie_session_save(handle, $0, $1, $2, $3) }
    }

    /// Puts what `save` gave in the place of what the session holds.
    public func load(_ saved: [UInt8]) throws {
        try call { rie_session_load(handle, saved, saved.count, $0) }
    }

    /// Stops what the session computes, until it is called with false. Any thread, at any time.
    public func cancel(_ on: Bool = true) {
        _ = rie_session_cancel(handle, on ? 1 : 0, nil)
    }
}
