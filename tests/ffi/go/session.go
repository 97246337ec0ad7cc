package rie

// #include <rie.h>
import "C"

import (
	"context"
	"runtime"
	"unsafe"
)

// Session is a sequence of tokens and what is computed of it. One call at a time, except Cancel.
type Session struct{ *object }

func (s *Session) c() *C.rie_session { return (*C.rie_session)(s.handle) }

// NewSession makes an empty session, which keeps the model alive.
func (m *Model) NewSession(options Options) (*Session, error) {
	var session *C.rie_session
	err := options.with(func(set *C.rie_options) error {
		_, err := m.call(func(failure *C.rie_error) C.rie_status {
			return C.rie_session_new(m.c(), set, &session, failure)
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Session{own(unsafe.Pointer(session))}, nil
}

// Append queues tokens; it computes nothing.
func (s *Session) Append(tokens []Token) error {
	_, err := s.call(func(failure *C.rie_error) C.rie_status {
		return C.rie_session_append(s.c(), (*C.rie_token)(first(tokens)), C.size_t(len(tokens)), failure)
	})
	return err
}

// Eval evaluates all that is queued, until ctx ends; what was evaluated by then stays so.
func (s *Session) Eval(ctx context.Context) error {
	defer s.watch(ctx)()
	_, err := s.call(func(failure *C.rie_error) C.rie_status {
		return C.rie_session_eval(s.c(), 0, failure)
	})
	return err
}

// Step chooses the next token, the likeliest if sampler is nil. more is false for one that ends generation.
func (s *Session) Step(ctx context.Context, sampler *Sampler) (token Token, more bool, err error) {
	defer s.watch(ctx)()
	var chooser *C.rie_sampler
	if sampler != nil {
		chooser = (*C.rie_sampler)(sampler.handle)
		defer runtime.KeepAlive(sampler.object)
	}
	status, err := s.call(func(failure *C.rie_error) C.rie_status {
		return C.rie_decode_step(s.c(), chooser, (*C.rie_token)(&token), failure)
	})
	return token, status == C.RIE_OK, err
}

// Cancel stops what the session computes, now and until it is called with false. From any goroutine, at any time.
func (s *Session) Cancel(on bool) {
	var flag C.int32_t
	if on {
		flag = 1
	}
	C.rie_session_cancel(s.c(), flag, nil)
	runtime.KeepAlive(s.object)
}

// watch cancels the session when ctx ends, in the middle of a call if need be. The function that it returns ends the watch,
// and the cancellation with it, so that the session can go on with another context.
func (s *Session) watch(ctx context.Context) func() {
	if ctx.Done() == nil {
		return func() {}
	}
	if ctx.Err() != nil {
		s.Cancel(true)
		return func() { s.Cancel(false) }
	}
	stop, cancelled := make(chan struct{}), make(chan bool)
	go func() {
		select {
		case <-ctx.Done():
			s.Cancel(true)
			cancelled <- true
		case <-stop:
			cancelled <- false
		}
	}()
	return func() {
		close(stop)
		if <-cancelled {
			s.Cancel(false)
		}
	}
}

// Fork makes a session with the same tokens and options that shares what is computed.
func (s *Session) Fork() (*Session, error) {
	var fork *C.rie_session
	_, err := s.call(func(failure *C.rie_error) C.rie_status {
		return C.rie_session_fork(s.c(), &fork, failure)
	})
	if err != nil {
		return nil, err
	}
	return &Session{own(unsafe.Pointer(fork))}, nil
}

// Save gives the session as bytes for Load, in this process or another.
func (s *Session) Save() ([]byte, error) {
	defer runtime.KeepAlive(s.object)
	return fill(0, func(data *byte, room C.size_t, length *C.size_t, failure *C.rie_error) C.rie_status {
		return C.rie_session_save(s.c(), (*C.uint8_t)(data), room, length, failure)
	})
}

// Load puts what Save gave in the place of what the session holds.
func (s *Session) Load(saved []byte) error {
	_, err := s.call(func(failure *C.rie_error) C.rie_status {
		return C.rie_session_load(s.c(), (*C.uint8_t)(first(saved)), C.size_t(len(saved)), failure)
	})
	return err
}

// Generation is a loop over new tokens and their text, like a bufio.Scanner. For one goroutine.
type Generation struct {
	Sampler *Sampler    // nil: the likeliest tokens
	Stream  *TextStream // nil: no text

	session *Session
	ctx     context.Context
	left    int
	token   Token
	text    string
	err     error
}

// Generate begins a loop over at most count tokens, until ctx ends. Close nothing: it owns nothing.
func (s *Session) Generate(ctx context.Context, count int) *Generation {
	return &Generation{session: s, ctx: ctx, left: count}
}

// Next makes the next token; false at the end, or after an error.
func (g *Generation) Next() bool {
	if g.left == 0 || g.err != nil {
		return false
	}
	var more bool
	g.left--
	if g.token, more, g.err = g.session.Step(g.ctx, g.Sampler); g.err != nil || !more {
		g.left = 0
		return false
	}
	if g.Stream != nil {
		g.text, g.err = g.Stream.Push(g.token)
	}
	return g.err == nil
}

// Token is the token that Next made.
func (g *Generation) Token() Token { return g.token }

// Text is the text that it settled; call Stream.Flush after the loop for what is held back.
func (g *Generation) Text() string { return g.text }

// Err is what ended the loop, nil if nothing was wrong.
func (g *Generation) Err() error { return g.err }
