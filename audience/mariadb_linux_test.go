package audience

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"database/sql"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
)

// server is a MariaDB of this test process, in its own folder.
type server struct {
	folder string
	port   int
	cmd    *exec.Cmd
}

var mariadb struct {
	sync.Once
	*server
	err error
}

// TestMain stops the server that the first MariaDB test started.
func TestMain(m *testing.M) {
	code := m.Run()
	if mariadb.server != nil {
		mariadb.stop()
	}
	os.Exit(code)
}

// mariadbServer returns the server, started on first use. Without the
// binaries the test is skipped, or fails if LEMMA_TEST_REQUIRED is 1.
func mariadbServer(t testing.TB) *server {
	t.Helper()
	if _, err := mariadbd(); err != nil {
		if os.Getenv("LEMMA_TEST_REQUIRED") == "1" {
			t.Fatalf("MariaDB is required: %v", err)
		}
		t.Skipf("SKIPPED, MySQL AND MARIADB ARE NOT TESTED: %v; install mariadb-server-core", err)
	}
	mariadb.Do(func() { mariadb.server, mariadb.err = startMariaDB() })
	if mariadb.err != nil {
		t.Fatal(mariadb.err)
	}
	return mariadb.server
}

// mariadbd finds the server, which Debian keeps out of the PATH of most users.
func mariadbd() (string, error) {
	if path, err := exec.LookPath("mariadbd"); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/mariadbd")
}

func startMariaDB(options ...string) (*server, error) {
	folder, err := os.MkdirTemp("", "lemma-mariadb-")
	if err != nil {
		return nil, err
	}
	s := &server{folder: folder}
	if err := s.start(options); err != nil {
		s.stop()
		return nil, fmt.Errorf("start mariadbd: %w", err)
	}
	return s, nil
}

func (s *server) start(options []string) error {
	if err := s.bootstrap(); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	s.port = port
	if err := s.certify(); err != nil {
		return err
	}
	s.cmd = s.command(append(options, "--bind-address=127.0.0.1", "--port="+strconv.Itoa(port), "--socket="+s.socket(),
		"--ssl-cert="+s.file("cert"), "--ssl-key="+s.file("key"))...)
	if err := s.cmd.Start(); err != nil {
		return err
	}
	return s.ready()
}

func (s *server) socket() string { return s.file("sock") }

func (s *server) file(name string) string { return filepath.Join(s.folder, name) }

// certify makes a certificate without a trusted issuer.
func (s *server) certify() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"localhost"}}
	cert, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return err
	}
	secret := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return errors.Join(os.WriteFile(s.file("cert"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o644),
		os.WriteFile(s.file("key"), secret, 0o644))
}

// command runs mariadbd on the folder, as another user if this one is root,
// as which it refuses to run.
func (s *server) command(args ...string) *exec.Cmd {
	path, _ := mariadbd()
	args = append([]string{"--no-defaults", "--datadir=" + filepath.Join(s.folder, "data"), "--tmpdir=" + s.folder,
		"--pid-file=" + filepath.Join(s.folder, "pid"),
		"--log-error=" + filepath.Join(s.folder, "log"), "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M",
		"--skip-log-bin"}, args...)
	if os.Getuid() == 0 {
		args = append(args, "--user=nobody")
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = s.folder
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// bootstrap makes the system tables from the scripts of the package.
func (s *server) bootstrap() error {
	if err := os.Mkdir(filepath.Join(s.folder, "data"), 0o700); err != nil {
		return err
	}
	if err := s.giveAway(); err != nil {
		return err
	}
	script := bytes.NewBufferString("create database mysql;\nuse mysql;\n")
	for _, name := range []string{"mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql"} {
		text, err := os.ReadFile(filepath.Join("/usr/share/mysql", name))
		if err != nil {
			return err
		}
		script.Write(text)
		script.WriteByte('\n')
	}
	cmd := s.command("--bootstrap", "--skip-networking")
	cmd.Stdin = script
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (s *server) giveAway() error {
	if os.Getuid() != 0 {
		return nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return err
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	for _, path := range []string{s.folder, filepath.Join(s.folder, "data")} {
		if err := os.Chown(path, uid, gid); err != nil {
			return err
		}
	}
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// ready waits until the server accepts its first statement, which makes an
// administrator for the tests.
func (s *server) ready() error {
	root, err := sql.Open("mysql", "root@unix("+s.socket()+")/mysql")
	if err != nil {
		return err
	}
	defer root.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case <-tick.C:
		case <-deadline:
			log, _ := os.ReadFile(filepath.Join(s.folder, "log"))
			return fmt.Errorf("it does not respond: %w\n%s", err, log)
		}
		if _, err = root.Exec("grant all on *.* to admin@'127.0.0.1' identified by 'admin' with grant option"); err == nil {
			return nil
		}
	}
}

func (s *server) stop() {
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
	}
	os.RemoveAll(s.folder)
}

func (s *server) address() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// dsn is that of a login to the shop.
func (s *server) dsn(user, password string) string {
	return fmt.Sprintf("mysql://%s:%s@%s/shop", user, password, s.address())
}

func (s *server) exec(t testing.TB, statements ...string) {
	t.Helper()
	db, err := sql.Open("mysql", "admin:admin@tcp("+s.address()+")/mysql")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range statements {
		if _, err := db.ExecContext(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func (s *server) count(t testing.TB, query string) (n int) {
	t.Helper()
	db, err := sql.Open("mysql", "admin:admin@tcp("+s.address()+")/mysql")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow(query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// login makes a user with the given grants and returns its DSN.
func (s *server) login(t testing.TB, user string, grants ...string) string {
	t.Helper()
	s.exec(t, "create or replace user "+user+"@'127.0.0.1' identified by 'pw'")
	for _, g := range grants {
		s.exec(t, strings.ReplaceAll(g, "$", user+"@'127.0.0.1'"))
	}
	return s.dsn(user, "pw")
}

var shopOnce sync.Once

// mariadbShop is a bundle whose source is a MariaDB with a login that can only select.
func mariadbShop(t testing.TB, o Options) (bundle, *server) {
	t.Helper()
	s := mariadbServer(t)
	shopOnce.Do(func() {
		s.exec(t, "create database shop", "create database shop_log",
			`create table shop.customers (id bigint unsigned primary key, email varchar(255), name varchar(255) character
				set latin1, opted_out tinyint(1) not null default 0,
  joined datetime(3), seen timestamp null, birthday date, balance decimal(10,2), score double, ratio float,
  meta json, raw blob, bits bit(1), y year)`,
			`insert into shop.customers
with recursive s as (select 1 as n union all select n + 1 from s where n < 20)
select n, concat('person', n, '@example.com'), concat('Bjørn "', n, '"'), n % 5 = 0,
       '2026-01-02 03:04:05.678', '2026-01-02 03:04:05', '1990-05-06', n + 0.5, n / 4, 0.1, '{"n": 1}', 'hi', 1, 2026 from s`)
	})
	b := setup(t, o)
	user := "r" + strings.ReplaceAll(b.Workspace.String()[24:], "-", "")
	b.DSN = s.login(t, user, "grant select on shop.* to $")
	b.source = b.addSource(t, MySQL, b.DSN)
	return b, s
}
