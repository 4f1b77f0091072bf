package execution

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"lemma"
)

// A flight goes on while a caller waits for it, and ends with the last one.
func TestAFlightEndsWithItsLastCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f flights
		begun, ended := 0, 0
		compile := func(ctx context.Context) (compiled, error) {
			begun++
			<-ctx.Done()
			ended++
			return compiled{}, ctx.Err()
		}
		join := func() (leave context.CancelFunc, left chan error) {
			ctx, end := context.WithCancelCause(t.Context())
			left = make(chan error, 1)
			go func() {
				_, err := f.do(ctx, flightKey{}, compile)
				left <- err
			}()
			synctest.Wait()
			return func() { end(errLate) }, left
		}
		leaveFirst, first := join()
		leaveSecond, second := join()
		leaveFirst()
		if err := <-first; !errors.Is(err, errLate) {
			t.Errorf("the first caller: %v", err)
		}
		synctest.Wait()
		if begun != 1 || ended != 0 {
			t.Errorf("%d flights, %d ended although a caller waits", begun, ended)
		}
		leaveSecond()
		if err := <-second; !errors.Is(err, errLate) {
			t.Errorf("the second caller: %v", err)
		}
		synctest.Wait()
		if ended != 1 || len(f.open) != 0 {
			t.Errorf("%d flights ended, %d are open", ended, len(f.open))
		}
	})
}

// A panic of what is compiled is the error of its callers, and not the end of the process.
func TestAFlightThatPanics(t *testing.T) {
	t.Parallel()
	var f flights
	_, err := f.do(t.Context(), flightKey{}, func(context.Context) (compiled, error) { panic("broken") })
	if _, is := errors.AsType[*lemma.Panic](err); !is {
		t.Errorf("%v", err)
	}
}
