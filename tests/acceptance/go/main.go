// Runs one case against a service: `acceptance CASE URL`. Prints one line of JSON with what the client saw and exits
// with 0; 1: the case failed or took too long; 2: no such case. The test that started it judges what was seen.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

const patience = 120 * time.Second

func known(name string) bool {
	_, found := cases[name]
	_, login := logins[name]
	return found || login
}

func main() {
	if len(os.Args) != 3 || !known(os.Args[1]) {
		fmt.Fprintln(os.Stderr, "usage: acceptance CASE URL")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	seen, err := run(ctx, os.Args[1], os.Args[2])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(seen)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
