using System;
using System.Runtime.InteropServices;
using System.Text;

namespace Rie
{
    /// <summary>A handle of the library, freed once: by Dispose or its finalizer, never during a call.</summary>
    public class Handle : SafeHandle
    {
        public Handle() : base(IntPtr.Zero, true) { }

        public override bool IsInvalid { get { return handle == IntPtr.Zero; } }

        protected override bool ReleaseHandle()
        {
            Native.rie_free(handle);
            return true;
        }
    }

    /// <summary>include/rie.h as P/Invoke sees it; arrays are pinned for the duration of a call and no longer.</summary>
    internal static class Native
    {
        private const string Library = "rie"; // librie.so, librie.dylib, rie.dll

        public const int Ok = 0, End = 1, BufferTooSmall = -12, Cancelled = -15;

        [DllImport(Library)]
        public static extern void rie_free(IntPtr handle);
        [DllImport(Library)]
        public static extern IntPtr rie_status_name(int status);
        [DllImport(Library)]
        public static extern Handle rie_error_new();
        [DllImport(Library)]
        public static extern IntPtr rie_error_message(Handle error);

        [DllImport(Library)]
        public static extern Handle rie_options_new();
        [DllImport(Library)]
        public static extern int rie_options_set_int(Handle options, int key, long value, Handle error);
        [DllImport(Library)]
        public static extern int rie_options_set_float(Handle options, int key, double value, Handle error);
        [DllImport(Library)]
        public static extern int rie_options_set_str(Handle options, int key, byte[] value, Handle error);

        [DllImport(Library)]
        public static extern int rie_model_load(byte[] path, Handle options, out Handle model, Handle error);
        [DllImport(Library)]
        public static extern int rie_inspect(byte[] path, Handle options, byte[] buf, UIntPtr cap, out UIntPtr length,
                                             Handle error);
        [DllImport(Library)]
        public static extern int rie_get_int(Handle of, int key, out long value, Handle error);
        [DllImport(Library)]
        public static extern int rie_get_str(Handle of, int key, byte[] buf, UIntPtr cap, out UIntPtr length, Handle error);

        [DllImport(Library)]
        public static extern int rie_tokenize(Handle model, byte[] text, UIntPtr n, uint flags, int[] buf, UIntPtr cap,
                                              out UIntPtr length, Handle error);
        [DllImport(Library)]
        public static extern int rie_detokenize(Handle model, int[] tokens, UIntPtr n, uint flags, byte[] buf, UIntPtr cap,
                                                out UIntPtr length, Handle error);
        [DllImport(Library)]
        public static extern int rie_text_stream_new(Handle model, uint flags, out Handle stream, Handle error);
        [DllImport(Library)]
        public static extern int rie_text_stream_push(Handle stream, int token, byte[] buf, UIntPtr cap, out UIntPtr length,
                                                      Handle error);

        [DllImport(Library)]
        public static extern int rie_session_new(Handle model, Handle options, out Handle session, Handle error);
        [DllImport(Library)]
        public static extern int rie_session_append(Handle session, int[] tokens, UIntPtr n, Handle error);
        [DllImport(Library)]
        public static extern int rie_session_eval(Handle session, UIntPtr maxTokens, Handle error);
        [DllImport(Library)]
        public static extern int rie_session_fork(Handle session, out Handle fork, Handle error);
        [DllImport(Library)]
        public static extern int rie_session_save(Handle session, byte[] buf, UIntPtr cap, out UIntPtr length, Handle error);
        [DllImport(Library)]
        public static extern int rie_session_load(Handle session, byte[] data, UIntPtr n, Handle error);
        [DllImport(Library)]
        public static extern int rie_session_cancel(Handle session, int on, Handle error);
        [DllImport(Library)]
        public static extern int rie_sampler_new(Handle options, out Handle sampler, Handle error);
        [DllImport(Library)]
        public static extern int rie_decode_step(Handle session, Handle sampler, out int token, Handle error);

        /// <summary>No object: what the library takes as NULL.</summary>
        public static readonly Handle None = new Handle();

        /// <summary>A path or the like as the library wants it: UTF-8 with a NUL at its end.</summary>
        public static byte[] Path(string path) { return Encoding.UTF8.GetBytes(path + "\0"); }

        public static string Utf8(IntPtr text)
        {
            int length = 0;
            while (Marshal.ReadByte(text, length) != 0) length++;
            var bytes = new byte[length];
            Marshal.Copy(text, bytes, 0, length);
            return Encoding.UTF8.GetString(bytes);
        }

        /// <summary>Makes a call with an error object of its own, so that objects may change threads; throws what it
        /// failed with, except that a buffer was too small, which Fill sees to.</summary>
        public static int Check(Func<Handle, int> call)
        {
            using (Handle error = rie_error_new())
            {
                int status = call(error);
                if (status >= 0 || status == BufferTooSmall) return status;
                throw new RieException(status, Utf8(rie_status_name(status)), Utf8(rie_error_message(error)));
            }
        }

        public delegate int Read<T>(T[] buffer, UIntPtr capacity, out UIntPtr length, Handle error);

        /// <summary>What a call writes, in a buffer that is made larger until it fits.</summary>
        public static T[] Fill<T>(int room, Read<T> read)
        {
            while (true)
            {
                var buffer = new T[room];
                UIntPtr length = UIntPtr.Zero;
                int status = Check(error => read(buffer, (UIntPtr)buffer.Length, out length, error));
                room = (int)length;
                if (status == BufferTooSmall) continue;
                Array.Resize(ref buffer, room);
                return buffer;
            }
        }

        public static string Text(int room, Read<byte> read) { return Encoding.UTF8.GetString(Fill(room, read)); }
    }

    /// <summary>What a failed call throws; its object is as it was.</summary>
    public class RieException : Exception
    {
        internal RieException(int status, string name, string message) : base(message)
        {
            Status = status;
            StatusName = name;
        }

        /// <summary>One of RIE_ERR_*.</summary>
        public int Status { get; private set; }

        /// <summary>The status as rie.h spells it.</summary>
        public string StatusName { get; private set; }
    }
}
