package rie

// #include <stdlib.h>
// #include <rie.h>
import "C"

import (
	"runtime"
	"unsafe"
)

// Inspect describes the model at path as JSON, without mapping its weights.
func Inspect(path string) (string, error) {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	text, err := fill(1<<14, func(data *byte, room C.size_t, length *C.size_t, failure *C.rie_error) C.rie_status {
		return C.rie_inspect(cpath, nil, (*C.char)(unsafe.Pointer(data)), room, length, failure)
	})
	return string(text), err
}

// Model is a loaded model. Any number of goroutines may use it; sessions and text streams live on without it.
type Model struct{ *object }

func (m *Model) c() *C.rie_model { return (*C.rie_model)(m.handle) }

// Load loads a Hugging Face directory or a .safetensors file.
func Load(path string, options Options) (*Model, error) {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var model *C.rie_model
	err := options.with(func(set *C.rie_options) error {
		_, err := call(func(failure *C.rie_error) C.rie_status {
			return C.rie_model_load(cpath, set, &model, failure)
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Model{own(unsafe.Pointer(model))}, nil
}

// Tokenize gives the tokens of a text; flags are AddSpecial and ParseSpecial.
func (m *Model) Tokenize(text string, flags uint32) ([]Token, error) {
	defer runtime.KeepAlive(m.object)
	data, size := bytes(text)
	return fill(len(text)+16, func(ids *Token, room C.size_t, n *C.size_t, failure *C.rie_error) C.rie_status {
		return C.rie_tokenize(m.c(), data, size, C.uint32_t(flags), (*C.rie_token)(ids), room, n, failure)
	})
}

// Detokenize gives the text of tokens; flags are 0 or SkipSpecial.
func (m *Model) Detokenize(tokens []Token, flags uint32) (string, error) {
	defer runtime.KeepAlive(m.object)
	ids, n := (*C.rie_token)(first(tokens)), C.size_t(len(tokens))
	text, err := fill(8*len(tokens), func(data *byte, room C.size_t, length *C.size_t, failure *C.rie_error) C.rie_status {
		return C.rie_detokenize(m.c(), ids, n, C.uint32_t(flags), (*C.char)(unsafe.Pointer(data)), room, length, failure)
	})
	return string(text), err
}

// Sampler chooses tokens from logits. One call at a time.
type Sampler struct{ *object }

// NewSampler makes a sampler with the options that concern it.
func NewSampler(options Options) (*Sampler, error) {
	var sampler *C.rie_sampler
	err := options.with(func(set *C.rie_options) error {
		_, err := call(func(failure *C.rie_error) C.rie_status {
			return C.rie_sampler_new(set, &sampler, failure)
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Sampler{own(unsafe.Pointer(sampler))}, nil
}

// TextStream turns tokens into text as they come, never cutting a character. One call at a time.
type TextStream struct{ *object }

// NewTextStream makes a stream; flags are 0 or SkipSpecial.
func (m *Model) NewTextStream(flags uint32) (*TextStream, error) {
	var stream *C.rie_text_stream
	_, err := m.call(func(failure *C.rie_error) C.rie_status {
		return C.rie_text_stream_new(m.c(), C.uint32_t(flags), &stream, failure)
	})
	if err != nil {
		return nil, err
	}
	return &TextStream{own(unsafe.Pointer(stream))}, nil
}

// Push gives the text that the next tokens make certain.
func (s *TextStream) Push(tokens ...Token) (string, error) {
	defer runtime.KeepAlive(s.object)
	all := ""
	for _, token := range tokens {
		piece, err := fill(64, func(data *byte, room C.size_t, length *C.size_t, failure *C.rie_error) C.rie_status {
			stream, text := (*C.rie_text_stream)(s.handle), (*C.char)(unsafe.Pointer(data))
			return C.rie_text_stream_push(stream, C.rie_token(token), text, room, length, failure)
		})
		if err != nil {
			return all, err
		}
		all += string(piece)
	}
	return all, nil
}

// Flush gives what is held back at the end; the stream is then as new.
func (s *TextStream) Flush() (string, error) { return s.Push(-1) }
