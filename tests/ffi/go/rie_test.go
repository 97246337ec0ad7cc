package rie

import (
	"context"
	"errors"
	"os"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"
)

func load(t *testing.T, options Options) *Model {
	t.Helper()
	path := os.Getenv("RIE_MODEL")
	if path == "" {
		t.Fatal("RIE_MODEL names no model directory")
	}
	model, err := Load(path, options)
	if err != nil {
		t.Fatal(err)
	}
	return model
}

// name is the status that err carries.
func name(err error) string {
	var failure *Error
	if errors.As(err, &failure) {
		return failure.Name
	}
	return ""
}

// greedy is the next tokens after a prompt; the goroutine may be on another thread at every step.
func greedy(model *Model, prompt string, count int) ([]Token, error) {
	tokens, err := model.Tokenize(prompt, AddSpecial)
	if err != nil {
		return nil, err
	}
	session, err := model.NewSession(nil)
	if err != nil {
		return nil, err
	}
	if err := session.Append(tokens); err != nil {
		return nil, err
	}
	var ids []Token
	generation := session.Generate(context.Background(), count)
	for generation.Next() {
		ids = append(ids, generation.Token())
		runtime.Gosched()
	}
	return ids, generation.Err()
}

// More goroutines than threads, nothing closed: finalizers run between the steps.
func TestGoroutinesShareAModel(t *testing.T) {
	model := load(t, Options{OptThreads: 2})
	defer model.Close()
	prompts := []string{"Rust is", "A trait", "The ownership of a value", "Cargo"}
	expected := map[string][]Token{}
	for _, prompt := range prompts {
		ids, err := greedy(model, prompt, 12)
		if err != nil || len(ids) != 12 {
			t.Fatal(ids, err)
		}
		expected[prompt] = ids
	}
	var all sync.WaitGroup
	for i := 0; i < 16; i++ {
		all.Add(1)
		go func(prompt string) {
			defer all.Done()
			ids, err := greedy(model, prompt, 12)
			if err != nil || !reflect.DeepEqual(ids, expected[prompt]) {
				t.Errorf("%q: %v instead of %v, %v", prompt, ids, expected[prompt], err)
			}
			runtime.GC()
		}(prompts[i%len(prompts)])
	}
	all.Wait()
}

func TestOneCallAtATime(t *testing.T) {
	model := load(t, Options{OptISA: ISAScalar, OptThreads: 1}) // slow, so that the second call meets the first
	defer model.Close()
	session, err := model.NewSession(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Append(make([]Token, 500)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- session.Eval(context.Background()) }()
	time.Sleep(20 * time.Millisecond)
	if _, err := session.Fork(); name(err) != "RIE_ERR_BUSY" {
		t.Error("a second call at the same time gives", err)
	}
	session.Cancel(true)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error("a cancelled call gives", err)
	}
}

// A closed object gives an error, not a crash; closing twice is nothing.
func TestClosedObjects(t *testing.T) {
	model := load(t, Options{OptThreads: 2})
	session, err := model.NewSession(nil)
	if err != nil {
		t.Fatal(err)
	}
	model.Close()
	model.Close()
	if err := session.Append([]Token{1, 2}); err != nil {
		t.Error("a session needs its model no more than itself:", err)
	}
	session.Close()
	if err := session.Append([]Token{1}); name(err) != "RIE_ERR_HANDLE" {
		t.Error("a closed session answers", err)
	}
}

// A forgotten session is freed by its finalizer, and its pages with it.
func TestFinalizers(t *testing.T) {
	model := load(t, Options{OptThreads: 2})
	defer model.Close()
	if _, err := greedy(model, "Rust is", 3); err != nil {
		t.Fatal(err)
	}
	const kvBytes = 504 // RIE_INFO_KV_BYTES
	for i := 0; i < 100; i++ {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
		if bytes, err := model.Int(kvBytes); err != nil {
			t.Fatal(err)
		} else if bytes == 0 {
			return
		}
	}
	t.Error("the session's pages are still there")
}
