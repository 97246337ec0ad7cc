// The tour of tests/ffi/c/tour.c in Swift:
//
//     swiftc $(pkg-config --cflags --libs rie) Rie.swift main.swift -o tour && ./tour MODEL_DIRECTORY
import CRie

func printIds(_ name: String, _ ids: [Token]) {
    print("\(name): " + ids.map(String.init).joined(separator: " "))
}

func generate(_ session: Session, _ count: Int) throws -> [Token] {
    try (0..<count).compactMap { _ in try session.step() }
}

/// The name of the status that a call throws.
func failure(_ body: () throws -> Void) -> String {
    do {
        try body()
    } catch let error as RieError {
        return error.name
    } catch {
        return "\(error)"
    }
    return "no error"
}

/// A prompt that takes a while, stopped by another thread in the middle of the call.
func interrupt(_ path: String) throws {
    let options = try Options()
    try options.set(RIE_OPT_ISA, Int64(RIE_ISA_SCALAR))
    try options.set(RIE_OPT_THREADS, Int64(1))
    let session = try Session(Model(path, options))
    try session.append(Array(1...511))
    Task.detached {
        try await Task.sleep(nanoseconds: 20_000_000)
        session.cancel()
    }
    print("interrupted: \(failure { try session.eval() })")
}

func tour(_ path: String) async throws {
    print("inspect: \(try Model.inspect(path).utf8.count) bytes of JSON")
    let model = try Model(path)
    let (layers, ids) = (try model.int(RIE_INFO_LAYERS), try model.int(RIE_INFO_VOCAB_SIZE))
    print("model: \(try model.string(RIE_INFO_ARCHITECTURE)), \(layers) layers, \(ids) ids")
    let greeting = try model.tokenize("naïve 🦀", flags: 0)
    printIds("greeting", greeting)
    print("again: \(try model.detokenize(greeting))")
    let prompt = try model.tokenize("Rust is a systems programming language that")
    printIds("prompt", prompt)

    let session = try Session(model)
    try session.append(prompt)
    printIds("ids", try generate(session.fork(), 32))
    let stream = try TextStream(model)
    for token in prompt {
        _ = try stream.push(token) // a token's text can depend on those before
    }
    var text = ""
    for try await piece in session.text(stream, count: 32) {
        text += piece
    }
    print("text:\(text)")

    let branch = try Session(model)
    try branch.append(prompt)
    printIds("before", try generate(branch, 5))
    branch.cancel()
    print("cancelled: \(failure { _ = try branch.step() })")
    branch.cancel(false)
    printIds("resumed", try generate(branch, 3))
    try interrupt(path)

    let saved = try branch.save()
    printIds("fork", try generate(branch.fork(), 4))
    let loaded = try Session(model)
    try loaded.load(saved)
    printIds("loaded", try generate(loaded, 4))
    do {
        _ = try Model("/no/such/modèle")
    } catch let error as RieError {
        print("error: \(error)")
    }
}

try await tour(CommandLine.arguments[1])
