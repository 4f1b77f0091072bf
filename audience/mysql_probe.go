package audience

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"lemma/audience/sqltext"
)

// grant is one line of SHOW GRANTS.
type grant struct {
	privileges []string // as the server writes them, with their column lists
	scope      string   // *.*, `db`.* or `db`.`table`
	on         string   // the scope with its kind: FUNCTION `db`.`f`
	to         string   // the user or role that has it
	role       string   // the granted role, as the server quotes it; the other fields are then empty
	withOption bool
}

var (
	grantLine = regexp.MustCompile(`(?is)^GRANT (.+?) ON ((?:TABLE |FUNCTION |PROCEDURE |PACKAGE |PACKAGE BODY )?(\S+)) TO (.+?)` +
		`( IDENTIFIED .*?| REQUIRE .*?)?( WITH .*GRANT OPTION.*)?$`)
	roleLine   = regexp.MustCompile(`(?is)^GRANT (.+?) TO `)
	columnList = regexp.MustCompile(`\([^)]*\)`)
)

// maxGrant bounds the text of one grant, in bytes. To parse it takes up to 0.1 us a byte, so that
// a byte of it counts as several of maxCatalog.
const (
	maxGrant = 128 << 10
	textCost = 4
)

// maxPrivileges bounds the privileges of one grant. Servers have about a hundred.
const maxPrivileges = 1000

func parseGrant(line string) grant {
	if m := grantLine.FindStringSubmatch(line); m != nil {
		g := grant{on: m[2], scope: m[3], to: m[4], withOption: m[6] != ""}
		g.privileges = privilegesOf(m[1])
		return g
	}
	if m := roleLine.FindStringSubmatch(line); m != nil {
		return grant{role: m[1]}
	}
	return grant{}
}

// privilegesOf splits privileges, each with its column list, up to one more than maxPrivileges. A list
// that is not closed is none: its end is searched once, since a hostile server may begin very many.
func privilegesOf(text string) (all []string) {
	isClosed := true
	for text != "" && len(all) <= maxPrivileges {
		end := strings.IndexAny(text, ",(")
		if end == 0 {
			text = text[1:]
			continue
		}
		if end < 0 {
			end = len(text)
		} else if text[end] == '(' && isClosed {
			list := strings.IndexByte(text[end:], ')')
			if isClosed = list >= 0; isClosed {
				end += list + 1
			}
		}
		all, text = append(all, strings.TrimSpace(text[:end])), text[end:]
	}
	return all
}

// named returns a privilege in capitals, without its columns.
func named(privilege string) string {
	return strings.ToUpper(strings.TrimSpace(columnList.ReplaceAllString(privilege, "")))
}

// revoke is the statement that takes away the privileges for which the
// function returns true.
func (g grant) revoke(which func(name string) bool) []string {
	var list []string
	for _, p := range g.privileges {
		if which(named(p)) {
			list = append(list, strings.ToLower(named(p))+strings.TrimPrefix(p, columnList.ReplaceAllString(p, "")))
		}
	}
	if len(list) == 0 {
		return nil
	}
	if statement := sqltext.Statement("revoke " + strings.Join(list, ", ") + " on " + g.on + " from " + g.to); statement != "" {
		return []string{statement}
	}
	return nil
}

// Privileges that a grant may contain. Any other on *.* is a power over the server,
// such as over files, queries of others, replication and settings. New versions add
// such privileges, so this is a list of allowed ones.
var (
	mysqlReads  = []string{"USAGE", "SELECT", "SHOW VIEW", "SHOW DATABASES", "EXECUTE", "LOCK TABLES", "REFERENCES"}
	mysqlWrites = []string{"INSERT", "UPDATE", "DELETE", "DELETE HISTORY", "CREATE", "DROP", "ALTER", "INDEX", "CREATE VIEW",
		"CREATE TEMPORARY TABLES",
		"TRIGGER", "EVENT", "CREATE ROUTINE", "ALTER ROUTINE"}
)

// assess returns why a grant is too powerful, and whether it allows to write.
func (g grant) assess() (power string, writes bool) {
	for _, text := range g.privileges {
		switch p := named(text); {
		case slices.Contains(mysqlReads, p):
		case slices.Contains(mysqlWrites, p):
			writes = true
		case p == "PROXY":
			return "may act as another user", false
		case g.scope == "*.*":
			return "has " + strings.ToLower(sqltext.Printable(p)) + " on *.*", false
		default:
			writes = true
		}
	}
	onSystem := strings.HasPrefix(strings.Trim(strings.ToLower(g.scope), "`"), "mysql`.") ||
		strings.HasPrefix(strings.ToLower(g.scope), "mysql.")
	switch {
	case g.withOption:
		return "may grant to others", false
	case onSystem:
		return "has privileges on the system tables", false
	}
	return "", writes
}

func (m *mysqlSession) probe(ctx context.Context) (role, error) {
	grants, err := m.grants(ctx)
	if err != nil {
		return role{}, err
	}
	r := role{version: m.name()}
	writes := finding{text: "can write"}
	for _, g := range grants {
		power, canWrite := g.assess()
		if power != "" {
			r.powers = append(r.powers, finding{power, g.revoke(func(p string) bool { return p != "USAGE" })})
		}
		if canWrite {
			writes.revoke = append(writes.revoke, g.revoke(func(p string) bool { return !slices.Contains(mysqlReads, p) })...)
			r.writes = []finding{writes}
		}
	}
	if !m.private {
		r.warnings = append(r.warnings, "the connection is not encrypted")
	}
	return r, nil
}

// risks finds stored functions, which can run with the rights of their definer.
func (m *mysqlSession) risks(ctx context.Context) ([]finding, error) {
	grants, err := m.grants(ctx)
	if err != nil {
		return nil, err
	}
	execute := func(p string) bool { return p == "EXECUTE" }
	found := finding{text: "may call stored functions, which may run with the rights of another user"}
	may := false
	for _, g := range grants {
		may = may || slices.ContainsFunc(g.privileges, func(p string) bool { return execute(named(p)) })
		found.revoke = append(found.revoke, g.revoke(execute)...)
	}
	if !may {
		return nil, nil
	}
	return []finding{found}, nil
}

func (m *mysqlSession) name() string {
	if m.isMariaDB() {
		return "MariaDB " + sqltext.Printable(m.version)
	}
	return "MySQL " + sqltext.Printable(m.version)
}

// maxRoles bounds how many granted roles are read.
const maxRoles = 100

// grants returns the grants of the login and of every role that it can set, with at
// most maxCatalog of memory together.
func (m *mysqlSession) grants(ctx context.Context) ([]grant, error) {
	kept := 0
	all, err := m.show(ctx, "show grants", &kept)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := 0; i < len(all); i++ {
		role := all[i].role
		if role == "" || seen[role] {
			continue
		}
		if seen[role] = true; len(seen) > maxRoles {
			return nil, tooPowerful([]finding{{text: fmt.Sprintf("has more than %d roles", maxRoles)}})
		}
		more, err := m.grantsOf(ctx, role, &kept)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

func (m *mysqlSession) show(ctx context.Context, statement string, kept *int) ([]grant, error) {
	lines, err := m.query(ctx, statement)
	if err != nil || len(lines) == 0 {
		return nil, refused(err, "the source does not return the privileges of its role")
	}
	list := make([]grant, len(lines))
	for i, line := range lines {
		if len(line[0]) > maxGrant {
			return nil, refused(nil, "the source has a grant that is too long")
		}
		if *kept += textCost * len(line[0]); *kept > maxCatalog {
			return nil, overLimit("the source's catalog is too big")
		}
		g := parseGrant(line[0])
		unknown := g.role == "" && g.scope == "" && strings.HasPrefix(strings.ToUpper(line[0]), "GRANT")
		if unknown || len(g.privileges) > maxPrivileges {
			return nil, refused(nil, "the source has a grant that cannot be understood")
		}
		if *kept += memoryOf(line) + memoryOf(g.privileges); *kept > maxCatalog {
			return nil, overLimit("the source's catalog is too big")
		}
		list[i] = g
	}
	return list, nil
}

// grantsOf returns the grants of roles, whose names the server has quoted. MariaDB
// shows the grants of a role only after set role.
func (m *mysqlSession) grantsOf(ctx context.Context, roles string, kept *int) ([]grant, error) {
	if !m.isMariaDB() {
		return m.show(ctx, "show grants for current_user() using "+roles, kept)
	}
	now, err := m.query(ctx, "select coalesce(concat('`', replace(current_role(), '`', '``'), '`'), 'none')")
	if err != nil {
		return nil, err
	}
	if err := m.exec(ctx, "set role "+roles); err != nil {
		return nil, err
	}
	list, err := m.show(ctx, "show grants", kept)
	if err != nil {
		return nil, err
	}
	return list, m.exec(ctx, "set role "+now[0][0])
}
