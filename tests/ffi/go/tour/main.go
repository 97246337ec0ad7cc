// The tour of tests/ffi/c/tour.c with the Go package.
//
//	tour MODEL_DIRECTORY
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"rie"
)

// must ends the program on an error that the tour does not expect.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "tour:", err)
		os.Exit(1)
	}
}

func printIDs(name string, ids []rie.Token) {
	fmt.Print(name, ":")
	for _, id := range ids {
		fmt.Print(" ", id)
	}
	fmt.Println()
}

// status is the name of the status of err.
func status(err error) string {
	var failure *rie.Error
	if errors.As(err, &failure) {
		return failure.Name
	}
	return fmt.Sprint(err)
}

func generate(ctx context.Context, session *rie.Session, count int) ([]rie.Token, error) {
	var ids []rie.Token
	tokens := session.Generate(ctx, count)
	for tokens.Next() {
		ids = append(ids, tokens.Token())
	}
	return ids, tokens.Err()
}

// interrupt stops a prompt that takes a while, in the middle of the call.
func interrupt(path string) {
	model := must(rie.Load(path, rie.Options{rie.OptISA: rie.ISAScalar, rie.OptThreads: 1}))
	defer model.Close()
	prompt := make([]rie.Token, 511)
	for i := range prompt {
		prompt[i] = rie.Token(1 + i)
	}
	session := must(model.NewSession(nil))
	check(session.Append(prompt))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	fmt.Println("interrupted:", status(session.Eval(ctx)))
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tour MODEL_DIRECTORY")
		os.Exit(2)
	}
	path, background := os.Args[1], context.Background()
	fmt.Println("inspect:", len(must(rie.Inspect(path))), "bytes of JSON")
	model := must(rie.Load(path, nil))
	defer model.Close()
	fmt.Printf("model: %s, %d layers, %d ids\n", must(model.Str(rie.InfoArchitecture)), must(model.Int(rie.InfoLayers)),
		must(model.Int(rie.InfoVocabSize)))
	greeting := must(model.Tokenize("naïve 🦀", 0))
	printIDs("greeting", greeting)
	fmt.Println("again:", must(model.Detokenize(greeting, 0)))
	prompt := must(model.Tokenize("Rust is a systems programming language that", rie.AddSpecial))
	printIDs("prompt", prompt)

	session := must(model.NewSession(nil))
	defer session.Close()
	check(session.Append(prompt))
	stream := must(model.NewTextStream(rie.SkipSpecial))
	defer stream.Close()
	must(stream.Push(prompt...)) // a token's text can depend on those before
	var ids []rie.Token
	text := ""
	tokens := session.Generate(background, 32)
	tokens.Stream = stream
	for tokens.Next() {
		ids, text = append(ids, tokens.Token()), text+tokens.Text()
	}
	check(tokens.Err())
	printIDs("ids", ids)
	fmt.Println("text:" + text + must(stream.Flush()))

	branch := must(model.NewSession(nil))
	defer branch.Close()
	check(branch.Append(prompt))
	ctx, cancel := context.WithCancel(background)
	printIDs("before", must(generate(ctx, branch, 5)))
	cancel()
	_, err := generate(ctx, branch, 1)
	fmt.Println("cancelled:", status(err))
	if !errors.Is(err, context.Canceled) {
		check(errors.New("a cancelled generation is not context.Canceled"))
	}
	printIDs("resumed", must(generate(background, branch, 3)))
	interrupt(path)

	saved := must(branch.Save())
	fork := must(branch.Fork())
	defer fork.Close()
	printIDs("fork", must(generate(background, fork, 4)))
	loaded := must(model.NewSession(nil))
	defer loaded.Close()
	check(loaded.Load(saved))
	printIDs("loaded", must(generate(background, loaded, 4)))
	_, err = rie.Load("/no/such/modèle", nil)
	fmt.Println("error:", err)
}
