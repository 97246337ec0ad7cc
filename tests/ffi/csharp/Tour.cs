// The tour of tests/ffi/c/tour.c in C#.
//
//     tour MODEL_DIRECTORY
using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;
using System.Threading;
using Rie;

internal static class Tour
{
    private static void PrintIds(string name, IEnumerable<int> ids)
    {
        Console.WriteLine(name + ": " + string.Join(" ", ids));
    }

    // The name of the status that a cancelled call ends with.
    private static string Cancelled(Action call)
    {
        try
        {
            call();
        }
        catch (OperationCanceledException e)
        {
            return ((RieException)e.InnerException).StatusName;
        }
        return "not cancelled";
    }

    // A prompt that takes a while, stopped by another thread in the middle of the call.
    private static void Interrupt(string path)
    {
        using (var options = new Options().Set(Key.Isa, Key.IsaScalar).Set(Key.Threads, 1))
        using (var model = new Model(path, options))
        using (var session = new Session(model))
        using (var source = new CancellationTokenSource())
        {
            session.Append(Enumerable.Range(1, 511).ToArray());
            source.CancelAfter(20);
            Console.WriteLine("interrupted: " + Cancelled(() => session.Eval(source.Token)));
        }
    }

    // What nothing refers to any more is freed, and its memory with it.
    private static void Forgotten(Model model, int[] prompt)
    {
        // In a thread that ends, so that no stack remembers the session.
        var thread = new Thread(() =>
        {
            var session = new Session(model);
            session.Append(prompt);
            session.Eval();
            if (model.GetInt(Key.KvBytes) == 0) throw new Exception("a session without memory");
        });
        thread.Start();
        thread.Join();
        for (int i = 0; i < 100 && model.GetInt(Key.KvBytes) > 0; i++)
        {
            GC.Collect();
            GC.WaitForPendingFinalizers();
        }
        if (model.GetInt(Key.KvBytes) > 0) throw new Exception("a forgotten session is not freed");
    }

    private static int Main(string[] args)
    {
        if (args.Length != 1)
        {
            Console.Error.WriteLine("usage: tour MODEL_DIRECTORY");
            return 2;
        }
        Console.OutputEncoding = new UTF8Encoding(false);
        string path = args[0];
        Console.WriteLine("inspect: " + Encoding.UTF8.GetByteCount(Model.Inspect(path)) + " bytes of JSON");
        using (var model = new Model(path))
        using (var session = new Session(model))
        using (var stream = new TextStream(model))
        {
            Console.WriteLine("model: {0}, {1} layers, {2} ids", model.GetString(Key.Architecture), model.GetInt(Key.Layers),
                              model.GetInt(Key.VocabSize));
            int[] greeting = model.Tokenize("naïve 🦀", 0);
            PrintIds("greeting", greeting);
            Console.WriteLine("again: " + model.Detokenize(greeting));
            int[] prompt = model.Tokenize("Rust is a systems programming language that");
            PrintIds("prompt", prompt);
            Forgotten(model, prompt);

            session.Append(prompt);
            using (Session again = session.Fork()) PrintIds("ids", again.Tokens(32));
            stream.Push(prompt); // a token's text can depend on those before
            Console.WriteLine("text:" + string.Concat(session.Text(stream, 32)));
            Branches(model, prompt, path);
        }
        try
        {
            new Model("/no/such/modèle").Dispose();
        }
        catch (RieException e)
        {
            Console.WriteLine("error: " + e.StatusName + ": " + e.Message);
        }
        return 0;
    }

    private static void Branches(Model model, int[] prompt, string path)
    {
        using (var branch = new Session(model))
        using (var loaded = new Session(model))
        using (var source = new CancellationTokenSource())
        {
            branch.Append(prompt);
            PrintIds("before", branch.Tokens(5, null, source.Token));
            source.Cancel();
            Console.WriteLine("cancelled: " + Cancelled(() => branch.Tokens(1, null, source.Token).ToArray()));
            PrintIds("resumed", branch.Tokens(3));
            Interrupt(path);

            byte[] saved = branch.Save();
            using (Session fork = branch.Fork()) PrintIds("fork", fork.Tokens(4));
            loaded.Load(saved);
            PrintIds("loaded", loaded.Tokens(4));
        }
    }
}
