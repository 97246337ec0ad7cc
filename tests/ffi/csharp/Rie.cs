using System;
using System.Collections.Generic;
using System.Text;
using System.Threading;

namespace Rie
{
    /// <summary>Keys and flags of rie.h; every other key works too, by its number.</summary>
    public static class Key
    {
        public const int Threads = 100, Isa = 101, Context = 102, Seed = 106, TopK = 107, Temperature = 200, TopP = 201;
        public const int VocabSize = 400, Layers = 402, Tokens = 500, Evaluated = 501, KvBytes = 504, Architecture = 800;
        public const int IsaScalar = 1;
        public const uint AddSpecial = 1, ParseSpecial = 2, SkipSpecial = 4;
    }

    /// <summary>What all objects share. Each owns one handle; Dispose frees it, in any order and more than once, the
    /// finalizer what was forgotten. Calls that fail throw RieException. One call at a time, unless it says more.</summary>
    public abstract class RieObject : IDisposable
    {
        internal readonly Handle Handle;

        internal RieObject(Handle handle) { Handle = handle; }

        public void Dispose() { Handle.Dispose(); }

        /// <summary>The fact with the key RIE_INFO_*.</summary>
        public long GetInt(int key)
        {
            long value = 0;
            Native.Check(error => Native.rie_get_int(Handle, key, out value, error));
            return value;
        }

        /// <summary>The text with the key RIE_INFO_*.</summary>
        public string GetString(int key)
        {
            return Native.Text(64, (byte[] buf, UIntPtr cap, out UIntPtr length, Handle error) =>
                Native.rie_get_str(Handle, key, buf, cap, out length, error));
        }

        internal delegate int Maker(out Handle made, Handle error);

        internal static Handle Make(Maker maker)
        {
            Handle made = Native.None;
            Native.Check(error => maker(out made, error));
            return made;
        }
    }

    /// <summary>Options by key, for loads, sessions and samplers, each of which copies those that concern it.</summary>
    public sealed class Options : RieObject
    {
        public Options() : base(Native.rie_options_new()) { }

        public Options Set(int key, long value)
        {
            Native.Check(error => Native.rie_options_set_int(Handle, key, value, error));
            return this;
        }

        public Options Set(int key, double value)
        {
            Native.Check(error => Native.rie_options_set_float(Handle, key, value, error));
            return this;
        }

        public Options Set(int key, string value)
        {
            Native.Check(error => Native.rie_options_set_str(Handle, key, Native.Path(value), error));
            return this;
        }

        internal static Handle Of(Options options) { return options == null ? Native.None : options.Handle; }
    }

    /// <summary>A loaded model. Any number of threads may use it; sessions and streams live on without it.</summary>
    public sealed class Model : RieObject
    {
        public Model(string path, Options options = null)
            : base(Make((out Handle model, Handle error) =>
                Native.rie_model_load(Native.Path(path), Options.Of(options), out model, error))) { }

        /// <summary>Describes the model at a path as JSON, without mapping its weights.</summary>
        public static string Inspect(string path)
        {
            return Native.Text(1 << 14, (byte[] buf, UIntPtr cap, out UIntPtr length, Handle error) =>
                Native.rie_inspect(Native.Path(path), Native.None, buf, cap, out length, error));
        }

        /// <summary>The tokens of a text.</summary>
        public int[] Tokenize(string text, uint flags = Key.AddSpecial)
        {
            byte[] bytes = Encoding.UTF8.GetBytes(text);
            return Native.Fill(bytes.Length + 16, (int[] buf, UIntPtr cap, out UIntPtr length, Handle error) =>
                Native.rie_tokenize(Handle, bytes, (UIntPtr)bytes.Length, flags, buf, cap, out length, error));
        }

        /// <summary>The text of tokens.</summary>
        public string Detokenize(int[] tokens, uint flags = 0)
        {
            return Native.Text(8 * tokens.Length, (byte[] buf, UIntPtr cap, out UIntPtr length, Handle error) =>
                Native.rie_detokenize(Handle, tokens, (UIntPtr)tokens.Length, flags, buf, cap, out length, error));
        }
    }

    /// <summary>Chooses tokens from logits.</summary>
    public sealed class Sampler : RieObject
    {
        public Sampler(Options options)
            : base(Make((out Handle sampler, Handle error) =>
                Native.rie_sampler_new(options.Handle, out sampler, error))) { }
    }

    /// <summary>Turns tokens into text as they come, never cutting a character.</summary>
    public sealed class TextStream : RieObject
    {
        public TextStream(Model model, uint flags = Key.SkipSpecial)
            : base(Make((out Handle stream, Handle error) =>
                Native.rie_text_stream_new(model.Handle, flags, out stream, error))) { }

        /// <summary>The text that the next tokens make certain.</summary>
        public string Push(params int[] tokens)
        {
            var text = new StringBuilder();
            foreach (int token in tokens)
            {
                text.Append(Native.Text(64, (byte[] buf, UIntPtr cap, out UIntPtr length, Handle error) =>
                    Native.rie_text_stream_push(Handle, token, buf, cap, out length, error)));
            }
            return text.ToString();
        }

        /// <summary>What is held back at the end; the stream is then as new.</summary>
        public string Flush() { return Push(-1); }
    }

    /// <summary>A sequence of tokens and what is computed of it. What takes a CancellationToken throws
    /// OperationCanceledException soon after it is cancelled, and the session can go on with another one.</summary>
    public sealed class Session : RieObject
    {
        public Session(Model model, Options options = null)
            : base(Make((out Handle session, Handle error) =>
                Native.rie_session_new(model.Handle, Options.Of(options), out session, error))) { }

        private Session(Handle handle) : base(handle) { }

        /// <summary>Queues tokens; computes nothing.</summary>
        public void Append(params int[] tokens)
        {
            Native.Check(error => Native.rie_session_append(Handle, tokens, (UIntPtr)tokens.Length, error));
        }

        /// <summary>Evaluates all that is queued.</summary>
        public void Eval(CancellationToken cancellation = default(CancellationToken))
        {
            Cancellable(cancellation, error => Native.rie_session_eval(Handle, UIntPtr.Zero, error));
        }

        /// <summary>The next tokens, each made when it is asked for; the likeliest without a sampler.</summary>
        public IEnumerable<int> Tokens(int count, Sampler sampler = null,
                                       CancellationToken cancellation = default(CancellationToken))
        {
            Handle chooser = sampler == null ? Native.None : sampler.Handle;
            for (int i = 0; i < count; i++)
            {
                int token = 0;
                if (Cancellable(cancellation, e => Native.rie_decode_step(Handle, chooser, out token, e)) == Native.End)
                {
                    yield break;
                }
                yield return token;
            }
        }

        /// <summary>The next tokens as pieces of text.</summary>
        public IEnumerable<string> Text(TextStream stream, int count, Sampler sampler = null,
                                        CancellationToken cancellation = default(CancellationToken))
        {
            foreach (int token in Tokens(count, sampler, cancellation)) yield return stream.Push(token);
            yield return stream.Flush();
        }

        /// <summary>A session with the same tokens and options that shares what is computed.</summary>
        public Session Fork()
        {
            return new Session(Make((out Handle fork, Handle error) => Native.rie_session_fork(Handle, out fork, error)));
        }

        /// <summary>The session as bytes for Load, in this process or another.</summary>
        public byte[] Save()
        {
            return Native.Fill(0, (byte[] buf, UIntPtr cap, out UIntPtr length, Handle error) =>
                Native.rie_session_save(Handle, buf, cap, out length, error));
        }

        /// <summary>Puts what Save gave in the place of what the session holds.</summary>
        public void Load(byte[] saved)
        {
            Native.Check(error => Native.rie_session_load(Handle, saved, (UIntPtr)saved.Length, error));
        }

        /// <summary>Stops what the session computes, until it is called with false. Any thread, at any time.</summary>
        public void Cancel(bool on = true)
        {
            Native.Check(error => Native.rie_session_cancel(Handle, on ? 1 : 0, error));
        }

        private int Cancellable(CancellationToken cancellation, Func<Handle, int> call)
        {
            try
            {
                // Calls back from the thread that cancels; the end of the block waits for it.
                using (cancellation.Register(() => Cancel())) return Native.Check(call);
            }
            catch (RieException e)
            {
                if (e.Status != Native.Cancelled || !cancellation.IsCancellationRequested) throw;
                throw new OperationCanceledException(e.Message, e, cancellation);
            }
            finally
            {
                if (cancellation.IsCancellationRequested) Cancel(false);
            }
        }
    }
}
