"""The tour of tests/ffi/c/tour.c in Python: tour.py MODEL_DIRECTORY."""

import gc
import sys
import threading

import rie


def print_ids(name, ids):
    print(f"{name}:", *ids)


def failure(call):
    """The name of the status that a call raises."""
    try:
        call()
    except rie.Error as error:
        return error.name
    return "no error"


def interrupt(path):
    """A prompt that takes a while, stopped by another thread in the middle of the call."""
    with rie.Model(path, {rie.ISA: rie.ISA_SCALAR, rie.THREADS: 1}) as model, rie.Session(model) as session:
        session.append(range(1, 512))
        timer = threading.Timer(0.02, session.cancel)
        timer.start()
        print("interrupted:", failure(session.eval))
        timer.join()


def forgotten(model, prompt):
    """What nothing refers to any more is freed, and its memory with it."""
    session = rie.Session(model)
    session.append(prompt)
    session.eval()
    assert model.get_int(rie.KV_BYTES) > 0
    del session
    gc.collect()
    assert model.get_int(rie.KV_BYTES) == 0


def main(path):
    print("inspect:", len(rie.inspect(path).encode()), "bytes of JSON")
    with rie.Model(path) as model, rie.Session(model) as session, rie.TextStream(model) as stream:
        facts = model.get_str(rie.ARCHITECTURE), model.get_int(rie.LAYERS), model.get_int(rie.VOCAB_SIZE)
        print("model: {}, {} layers, {} ids".format(*facts))
        greeting = model.tokenize("naïve 🦀", 0)
        print_ids("greeting", greeting)
        print("again:", model.detokenize(greeting))
        prompt = model.tokenize("Rust is a systems programming language that")
        print_ids("prompt", prompt)
        forgotten(model, prompt)

        session.append(prompt)
        print_ids("ids", session.fork().tokens(32))
        stream.push(*prompt)  # a token's text can depend on those before
        print("text:" + "".join(session.text(stream, 32)))

        branch = rie.Session(model)
        branch.append(prompt)
        print_ids("before", branch.tokens(5))
        branch.cancel()
        print("cancelled:", failure(lambda: next(branch.tokens(1))))
        branch.cancel(False)
        print_ids("resumed", branch.tokens(3))
        interrupt(path)

        saved = branch.save()
        print_ids("fork", branch.fork().tokens(4))
        loaded = rie.Session(model)
        loaded.load(saved)
        print_ids("loaded", loaded.tokens(4))
    try:
        rie.Model("/no/such/modèle")
    except rie.Error as error:
        print(f"error: {error.name}: {error}")


main(sys.argv[1])
