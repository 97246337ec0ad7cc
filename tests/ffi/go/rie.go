// Package rie is RIE, an inference engine for Llama-family language models, through its C ABI (include/rie.h).
//
// Ownership: each object owns a handle of the library. Close releases it, in any order and more than once; a finalizer
// does so for what is forgotten. The library keeps no Go pointer after a call, so nothing needs to be pinned.
//
// Errors: what fails returns an *Error with the library's status and message, and leaves its object as it was.
//
// Threads: a Model may be used by any number of goroutines, everything else by one at a time; a second call gets
// RIE_ERR_BUSY. Goroutines may move between threads. What takes a context ends soon after the context does.
package rie

/*
#cgo pkg-config: rie
#include <stdlib.h>
#include <rie.h>
*/
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"unsafe"
)

// Token is a token id.
type Token int32

// Flags of Tokenize, Detokenize and NewTextStream.
const (
	AddSpecial   = C.RIE_TEXT_ADD_SPECIAL
	ParseSpecial = C.RIE_TEXT_PARSE_SPECIAL
	SkipSpecial  = C.RIE_TEXT_SKIP_SPECIAL
)

// Keys of options; every other RIE_OPT_* of rie.h works too, by its number.
const (
	OptThreads     = C.RIE_OPT_THREADS
	OptISA         = C.RIE_OPT_ISA
	OptContext     = C.RIE_OPT_CONTEXT
	OptSeed        = C.RIE_OPT_SEED
	OptTemperature = C.RIE_OPT_TEMPERATURE
	OptTopK        = C.RIE_OPT_TOP_K
	OptTopP        = C.RIE_OPT_TOP_P
	ISAScalar      = C.RIE_ISA_SCALAR
)

// Keys of facts; every other RIE_INFO_* of rie.h works too, by its number.
const (
	InfoVocabSize    = C.RIE_INFO_VOCAB_SIZE
	InfoLayers       = C.RIE_INFO_LAYERS
	InfoTokens       = C.RIE_INFO_TOKENS
	InfoEvaluated    = C.RIE_INFO_EVALUATED
	InfoArchitecture = C.RIE_INFO_ARCHITECTURE
)

// Error is what a failed call returns.
type Error struct {
	Status  int32  // one of RIE_ERR_*
	Name    string // the status as rie.h spells it
	Message string // names the thing at fault
}

func (e *Error) Error() string { return e.Name + ": " + e.Message }

// Is makes errors.Is(err, context.Canceled) true for what was cancelled, by a context or by Cancel.
func (e *Error) Is(target error) bool {
	return e.Status == C.RIE_ERR_CANCELLED && target == context.Canceled
}

// call gives f an error object of its own: one of the thread would not follow the goroutine to another.
func call(f func(*C.rie_error) C.rie_status) (C.rie_status, error) {
	failure := C.rie_error_new()
	defer C.rie_free(unsafe.Pointer(failure))
	status := f(failure)
	if status >= 0 {
		return status, nil
	}
	name, message := C.GoString(C.rie_status_name(status)), C.GoString(C.rie_error_message(failure))
	return status, &Error{int32(status), name, message}
}

// fill returns what read writes, in a buffer that is made larger until it fits.
func fill[T any](room int, read func(*T, C.size_t, *C.size_t, *C.rie_error) C.rie_status) ([]T, error) {
	length := C.size_t(room)
	for {
		buffer := make([]T, length)
		status, err := call(func(failure *C.rie_error) C.rie_status {
			return read(first(buffer), C.size_t(len(buffer)), &length, failure)
		})
		if status != C.RIE_ERR_BUFFER_TOO_SMALL {
			return buffer[:length], err
		}
	}
}

// first is a pointer to the elements for the duration of a call, nil if there are none.
func first[T any](elements []T) *T {
	if len(elements) == 0 {
		return nil
	}
	return &elements[0]
}

// bytes of a string for the duration of a call.
func bytes(text string) (*C.char, C.size_t) {
	return (*C.char)(unsafe.Pointer(first([]byte(text)))), C.size_t(len(text))
}

// object is a handle that is freed once: by Close, or when nothing refers to it any more.
type object struct{ handle unsafe.Pointer }

func own(handle unsafe.Pointer) *object {
	o := &object{handle}
	runtime.SetFinalizer(o, (*object).free)
	return o
}

func (o *object) free() { C.rie_free(o.handle) }

// Close releases the object now; what is done with it afterwards fails. A call that is running ends normally.
func (o *object) Close() {
	runtime.SetFinalizer(o, nil)
	o.free()
}

// call is call for f with a handle of the object, which must not be freed meanwhile.
func (o *object) call(f func(*C.rie_error) C.rie_status) (C.rie_status, error) {
	defer runtime.KeepAlive(o)
	return call(f)
}

// Int is the fact with the key RIE_INFO_*.
func (o *object) Int(key int32) (int64, error) {
	var value C.int64_t
	_, err := o.call(func(failure *C.rie_error) C.rie_status {
		return C.rie_get_int(o.handle, C.int32_t(key), &value, failure)
	})
	return int64(value), err
}

// Str is the text with the key RIE_INFO_*.
func (o *object) Str(key int32) (string, error) {
	defer runtime.KeepAlive(o)
	text, err := fill(64, func(data *byte, room C.size_t, length *C.size_t, failure *C.rie_error) C.rie_status {
		return C.rie_get_str(o.handle, C.int32_t(key), (*C.char)(unsafe.Pointer(data)), room, length, failure)
	})
	return string(text), err
}

// Options by the keys RIE_OPT_* of rie.h: int, float64 or string, as the key wants. nil means the defaults.
type Options map[int32]any

// with gives f the options in the library's form; it copies what it reads.
func (options Options) with(f func(*C.rie_options) error) error {
	set := C.rie_options_new()
	defer C.rie_free(unsafe.Pointer(set))
	for key, value := range options {
		key := C.int32_t(key)
		_, err := call(func(failure *C.rie_error) C.rie_status {
			switch value := value.(type) {
			case int:
				return C.rie_options_set_int(set, key, C.int64_t(value), failure)
			case float64:
				return C.rie_options_set_float(set, key, C.double(value), failure)
			case string:
				path := C.CString(value)
				defer C.free(unsafe.Pointer(path))
				return C.rie_options_set_str(set, key, path, failure)
			}
			panic(fmt.Sprintf("rie: option %d is a %T, not an int, float64 or string", key, value))
		})
		if err != nil {
			return err
		}
	}
	return f(set)
}
