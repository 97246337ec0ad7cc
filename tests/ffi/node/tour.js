// The tour of tests/ffi/c/tour.c in JavaScript: node tour.js MODEL_DIRECTORY
"use strict";
const rie = require("./rie");

const printIds = (name, ids) => console.log(`${name}: ${[...ids].join(" ")}`);

async function collect(sequence) {
    const all = [];
    for await (const item of sequence) {
        all.push(item);
    }
    return all;
}

/** The name of the status that a call throws. */
const failure = (promise) => promise.then(() => "no error", (error) => error.name);

/** A prompt that takes a while, stopped in the middle of the call. */
async function interrupt(path) {
    const model = new rie.Model(path, [[rie.key.ISA, rie.key.ISA_SCALAR], [rie.key.THREADS, 1]]);
    const session = new rie.Session(model);
    session.append(Array.from({ length: 511 }, (_, i) => 1 + i));
    console.log(`interrupted: ${await failure(session.eval(AbortSignal.timeout(20)))}`);
    session.close();
    model.close();
}

async function main(path) {
    console.log(`inspect: ${Buffer.byteLength(rie.inspect(path))} bytes of JSON`);
    const model = new rie.Model(path);
    const [layers, ids] = [model.getInt(rie.key.LAYERS), model.getInt(rie.key.VOCAB_SIZE)];
    console.log(`model: ${model.getString(rie.key.ARCHITECTURE)}, ${layers} layers, ${ids} ids`);
    const greeting = model.tokenize("naïve 🦀", 0);
    printIds("greeting", greeting);
    console.log(`again: ${model.detokenize(greeting)}`);
    const prompt = model.tokenize("Rust is a systems programming language that");
    printIds("prompt", prompt);

    const session = new rie.Session(model);
    session.append(prompt);
    printIds("ids", await collect(session.fork().tokens(32)));
    const stream = new rie.TextStream(model);
    stream.push(...prompt); // a token's text can depend on those before
    console.log(`text:${(await collect(session.text(stream, 32))).join("")}`);

    const branch = new rie.Session(model);
    branch.append(prompt);
    const controller = new AbortController();
    printIds("before", await collect(branch.tokens(5, controller.signal)));
    controller.abort();
    console.log(`cancelled: ${await failure(collect(branch.tokens(1, controller.signal)))}`);
    printIds("resumed", await collect(branch.tokens(3)));
    await interrupt(path);

    const saved = branch.save();
    printIds("fork", await collect(branch.fork().tokens(4)));
    const loaded = new rie.Session(model);
    loaded.load(saved);
    printIds("loaded", await collect(loaded.tokens(4)));
    try {
        new rie.Model("/no/such/modèle");
    } catch (error) {
        console.log(`error: ${error.name}: ${error.message}`);
    }
    [session, stream, branch, loaded, model].forEach((object) => object.close());
}

main(process.argv[2]);
