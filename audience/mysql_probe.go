package audience

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// grant is one line of SHOW GRANTS.
type grant struct {
	privileges []string // upper case, without column lists
	scope      string   // *.*, `db`.* or `db`.`table`
	role       string   // with neither of the above: a role that was granted, as the server quotes it
	withOption bool
}

var (
	grantLine  = regexp.MustCompile(`(?is)^GRANT (.+?) ON (?:TABLE |FUNCTION |PROCEDURE |PACKAGE |PACKAGE BODY )?(\S+) TO .+?( WITH .*GRANT OPTION.*)?$`)
	roleLine   = regexp.MustCompile(`(?is)^GRANT (.+?) TO `)
	columnList = regexp.MustCompile(`\([^)]*\)`)
)

func parseGrant(line string) grant {
	if m := grantLine.FindStringSubmatch(line); m != nil {
		g := grant{scope: m[2], withOption: m[3] != ""}
		for _, p := range strings.Split(columnList.ReplaceAllString(m[1], ""), ",") {
			g.privileges = append(g.privileges, strings.ToUpper(strings.TrimSpace(p)))
		}
		return g
	}
	if m := roleLine.FindStringSubmatch(line); m != nil {
		return grant{role: m[1]}
	}
	return grant{}
}

// What a grant may hold. Everything else that is granted on *.* is a power
// over the server (files, other users' queries, replication, settings), and
// new versions add new ones, so this is a list of what is allowed.
var (
	mysqlReads  = []string{"USAGE", "SELECT", "SHOW VIEW", "SHOW DATABASES", "EXECUTE", "LOCK TABLES", "REFERENCES"}
	mysqlWrites = []string{"INSERT", "UPDATE", "DELETE", "DELETE HISTORY", "CREATE", "DROP", "ALTER", "INDEX", "CREATE VIEW", "CREATE TEMPORARY TABLES",
		"TRIGGER", "EVENT", "CREATE ROUTINE", "ALTER ROUTINE"}
)

// judge says why a grant is too powerful, or whether it allows to write.
func (g grant) judge() (power string, writes bool) {
	for _, p := range g.privileges {
		switch {
		case slices.Contains(mysqlReads, p):
		case slices.Contains(mysqlWrites, p):
			writes = true
		case p == "PROXY":
			return "may act as another user", false
		case g.scope == "*.*":
			return "has " + strings.ToLower(spoken(p)) + " on *.*", false
		default:
			writes = true
		}
	}
	onSystem := strings.HasPrefix(strings.Trim(strings.ToLower(g.scope), "`"), "mysql`.") || strings.HasPrefix(strings.ToLower(g.scope), "mysql.")
	switch {
	case g.withOption:
		return "may grant to others", false
	case onSystem:
		return "has privileges on the system tables", false
	}
	return "", writes
}

func (m *mysqlSession) probe(ctx context.Context) (version string, warnings []string, err error) {
	grants, err := m.grants(ctx)
	if err != nil {
		return "", nil, err
	}
	writes := false
	for _, g := range grants {
		power, canWrite := g.judge()
		if power != "" {
			return "", nil, tooPowerful(power)
		}
		writes = writes || canWrite
	}
	if writes {
		warnings = append(warnings, "the role can write; one that can only select is safer")
	}
	if !m.tls && !m.local {
		warnings = append(warnings, "the connection is not encrypted")
	}
	return m.name(), warnings, nil
}

func (m *mysqlSession) name() string {
	if m.isMariaDB() {
		return "MariaDB " + spoken(m.version)
	}
	return "MySQL " + spoken(m.version)
}

// maxRoles bounds how many granted roles are looked into.
const maxRoles = 100

// grants are those of the login and of every role it can take on.
func (m *mysqlSession) grants(ctx context.Context) ([]grant, error) {
	all, err := m.show(ctx, "show grants")
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
			return nil, tooPowerful(fmt.Sprintf("has more than %d roles", maxRoles))
		}
		more, err := m.grantsOf(ctx, role)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

func (m *mysqlSession) show(ctx context.Context, statement string) ([]grant, error) {
	lines, err := m.query(ctx, statement)
	if err != nil || len(lines) == 0 {
		return nil, refused(err, "the source does not say what its role may do")
	}
	list := make([]grant, len(lines))
	for i, line := range lines {
		g := parseGrant(line[0])
		if g.role == "" && g.scope == "" && strings.HasPrefix(strings.ToUpper(line[0]), "GRANT") {
			return nil, refused(nil, "the source has a grant that cannot be understood")
		}
		list[i] = g
	}
	return list, nil
}

// grantsOf asks for what roles allow; the server quoted their names itself.
// MariaDB shows a role's grants only to who has taken it on.
func (m *mysqlSession) grantsOf(ctx context.Context, roles string) ([]grant, error) {
	if !m.isMariaDB() {
		return m.show(ctx, "show grants for current_user() using "+roles)
	}
	now, err := m.query(ctx, "select coalesce(concat('`', replace(current_role(), '`', '``'), '`'), 'none')")
	if err != nil {
		return nil, err
	}
	if err := m.exec(ctx, "set role "+roles); err != nil {
		return nil, err
	}
	list, err := m.show(ctx, "show grants")
	if err != nil {
		return nil, err
	}
	return list, m.exec(ctx, "set role "+now[0][0])
}
