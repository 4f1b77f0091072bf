package blobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"time"
)

// Store is where content is kept: a folder, or a bucket of an S3-compatible server.
type Store interface {
	// Put stores all of r under a name. An error of r ends it.
	Put(ctx context.Context, name string, r io.Reader) error
	// Open opens content for reading, from an offset on.
	Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error)
	// Size is the number of bytes of content; fs.ErrNotExist without it.
	Size(ctx context.Context, name string) (int64, error)
	// Delete deletes content, and what an upload has left. It succeeds without content.
	Delete(ctx context.Context, name string) error
}

// Signer is a Store that signs links from which clients read its content directly.
type Signer interface {
	Link(ctx context.Context, name, filename string, valid time.Duration) (*url.URL, error)
}

// Folder is a Store in a folder, which all processes share. Nothing outside of it is
// read or written.
type Folder struct{ root *os.Root }

// OpenFolder opens a folder, and creates it if it does not exist, so that it survives a crash of
// the machine.
func OpenFolder(dir string) (*Folder, error) {
	if err := makeFolder(dir); err != nil {
		return nil, fmt.Errorf("create the blob folder: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the blob folder: %w", err)
	}
	return &Folder{root}, nil
}

// makeFolder makes a folder and those above it, and syncs the one above each.
func makeFolder(dir string) error {
	above := filepath.Dir(dir)
	if _, err := os.Stat(dir); err == nil || above == dir {
		return err
	}
	if err := makeFolder(above); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.Open(above)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Put is part of Store. The file survives a crash of the machine once Put has returned.
func (f *Folder) Put(ctx context.Context, name string, r io.Reader) (err error) {
	if err := f.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	file, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if closed := file.Close(); err == nil {
			err = closed
		}
	}()
	if _, err := io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{r}, make([]byte, 256<<10)); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return f.syncFolders(path.Dir(name))
}

// syncFolders makes the names in a folder, and its own one in the folders above, survive a crash.
// All are synced, also by a Put that found them: the one that made them may not have come so far.
func (f *Folder) syncFolders(name string) error {
	for ; ; name = path.Dir(name) {
		if err := f.syncFolder(name); err != nil || name == "." {
			return err
		}
	}
}

func (f *Folder) syncFolder(name string) error {
	dir, err := f.root.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Open is part of Store.
func (f *Folder) Open(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
	file, err := f.root.Open(name)
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// Size is part of Store.
func (f *Folder) Size(_ context.Context, name string) (int64, error) {
	info, err := f.root.Stat(name)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Delete is part of Store.
func (f *Folder) Delete(_ context.Context, name string) error {
	if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
