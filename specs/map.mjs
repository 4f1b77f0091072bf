// Checks the tables of the NAME.md pages. Every property of a spec has a row,
// and every property that a constraint's comment or the code names exists.
//
//   constraint  (or trigger) exists in the schema after all migrations
//   function    `folder.name` exists in the code of that folder
//   test        `TestName` exists in the folder of one of the row's functions,
//               `folder.TestName` in that folder; it cannot skip itself
//
// With --cover it also runs each test, and fails unless the tests of a row
// execute every function of the row. This needs Go and Postgres, and some
// minutes. The output lists what is planned.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, readdirSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const here = fileURLToPath(new URL('.', import.meta.url)), root = join(here, '..')
const skip = new Set(['node_modules', '.git', 'specs', 'bin', '.lemma'])

function files(dir, suffix) {
  return readdirSync(dir).filter(f => !skip.has(f)).flatMap(f => {
    const path = join(dir, f)
    return statSync(path).isDirectory() ? files(path, suffix) : path.endsWith(suffix) ? [path] : []
  })
}
const text = path => readFileSync(path, 'utf8')
const go = files(root, '.go').map(file => file.slice(join(root, '/').length)).map(path =>
  ({ path, folder: path.slice(0, Math.max(0, path.lastIndexOf('/'))), text: text(join(root, path)) }))
const sql = files(join(root, 'migrations'), '.sql').map(text).join('\n')
const schema = text(join(root, 'migrations', 'schema.sql'))

const isConstraint = name => new RegExp(`\\b(constraint|index|trigger)\\s+${name}\\b`, 'i').test(schema)

// declarations are the functions of a name in a folder: file, lines and body.
function declarations(folder, name, inTests) {
  return go.filter(f => f.folder === folder && f.path.endsWith('_test.go') === inTests).flatMap(f => {
    const match = new RegExp(`^func (\\([^)]*\\) )?${name}[\\[(]`, 'm').exec(f.text)
    if (!match) return []
    const end = f.text.indexOf('\n}\n', match.index) // a parameter's type may end with a brace as well
    const line = at => f.text.slice(0, at).split('\n').length
    return [{ path: f.path, first: line(match.index), last: line(end + 1), body: f.text.slice(match.index, end) }]
  })
}

// place splits `folder.name`; a test without a folder is in one of those given.
function place(name) {
  const [, folder, rest] = name.match(/^([\w/]+)\.(\w+)$/) ?? []
  return folder ? { folder, name: rest } : { name }
}

function faultOfTest(cell, folders) {
  const { folder, name } = place(cell)
  const found = (folder ? [folder] : folders).flatMap(at => declarations(at, name, true))
  if (!found.length) {
    const elsewhere = [...new Set(go.map(f => f.folder))].filter(at => declarations(at, name, true).length)
    if (!elsewhere.length) return `no test ${cell}`
    return `${cell} is a test of ${elsewhere.join(', ')}: write ${elsewhere[0]}.${name} if it covers this row`
  }
  return found.some(f => /\bt\.Skip(f|Now)?\(/.test(f.body)) ? `${cell} can skip itself` : ''
}

const specs = readdirSync(here).filter(f => f.endsWith('.tla')).map(f => f.slice(0, -4))
const properties = {}
const problems = [], planned = [], mapped = []
for (const spec of specs) {
  const [, holds = ''] = text(join(here, `${spec}.tla`)).match(/^\\\* What holds([\s\S]*?)^\\\* What must be reachable/m) ?? []
  properties[spec] = [...holds.matchAll(/^([A-Z]\w+) ==/gm)].map(m => m[1]).filter(p => p !== 'TypeOK')
}

const names = cell => [...cell.matchAll(/`([^`]+)`/g)].map(m => m[1])
for (const spec of specs) {
  const rows = text(join(here, `${spec}.md`)).split('\n').filter(l => l.startsWith('| ') && !l.startsWith('| property'))
    .map(l => l.split('|').slice(1, -1).map(c => c.trim()))
  const listed = rows.flatMap(r => names(r[0]))
  for (const p of properties[spec]) if (!listed.includes(p)) problems.push(`${spec}.md has no row for ${p}`)
  for (const p of listed) if (!properties[spec].includes(p)) problems.push(`${spec}.md: ${p} is not a property of ${spec}.tla`)
  for (const [property, , constraint, fn, test] of rows) {
    const what = `${spec}!${property.replaceAll('`', '')}`
    const folders = names(fn).map(name => place(name).folder)
    const faults = {
      constraint: name => isConstraint(name) ? '' : `the schema has no constraint ${name}`,
      function: name => place(name).folder && declarations(place(name).folder, place(name).name, false).length ? '' : `no function ${name}`,
      test: name => faultOfTest(name, folders),
    }
    for (const [kind, cell] of [['constraint', constraint], ['function', fn], ['test', test]]) {
      if (cell.startsWith('planned')) { planned.push(`${what}  ${kind}${cell.slice(7)}`); continue }
      for (const name of names(cell)) if (faults[kind](name)) problems.push(`${what}: ${faults[kind](name)}`)
      if (kind !== 'constraint' && names(cell).length === 0) problems.push(`${what}: names no ${kind}`)
    }
    if (!fn.startsWith('planned') && !test.startsWith('planned')) mapped.push({ what, functions: names(fn), tests: names(test), folders })
  }
}
for (const { path, text } of [{ path: 'migrations', text: sql }, ...go]) {
  for (const [, spec, property] of text.matchAll(/\b([A-Z]\w+)!([A-Z]\w+)/g)) {
    if (properties[spec] && !properties[spec].includes(property)) problems.push(`${path} names ${spec}!${property}, which does not exist`)
  }
}

// cover runs the tests of all rows, and reports the functions that they never execute.
function cover() {
  const dir = mkdtempSync(join(tmpdir(), 'map-')), built = new Map(), seen = new Map()
  const packages = [...new Set(mapped.flatMap(row => row.functions.map(name => `./${place(name).folder}`)))].join(',')
  const binary = folder => {
    if (!built.has(folder)) {
      const out = join(dir, folder.replaceAll('/', '-'))
      const done = spawnSync('go', ['test', '-c', '-cover', `-coverpkg=${packages}`, '-o', out, `./${folder}`],
        { cwd: root, encoding: 'utf8' })
      if (done.status !== 0) throw new Error(done.stderr)
      built.set(folder, out)
    }
    return built.get(folder)
  }
  // ran are the lines that a test executes, as `path:first-last`.
  const ran = (folder, name) => {
    const key = `${folder}.${name}`
    if (!seen.has(key)) {
      const profile = join(dir, 'profile')
      const done = spawnSync(binary(folder), [`-test.run=^${name}$`, `-test.coverprofile=${profile}`],
        { cwd: join(root, folder), encoding: 'utf8', env: { ...process.env, LEMMA_TEST_REQUIRED: '1' } })
      if (done.status !== 0 || /no tests to run/.test(done.stdout + done.stderr)) {
        problems.push(`${key} fails or does not run: ${done.stdout.slice(-300)}`)
        return []
      }
      const executed = text(profile).split('\n').map(line => line.match(/^[^/]+\/(.*):(\d+)\.\d+,(\d+)\.\d+ \d+ ([1-9]\d*)$/))
      seen.set(key, executed.filter(Boolean).map(m => ({ path: m[1], first: +m[2], last: +m[3] })))
    }
    return seen.get(key)
  }
  for (const row of mapped) {
    const lines = row.tests.flatMap(cell => {
      const { folder, name } = place(cell)
      return ran(folder ?? row.folders.find(at => declarations(at, name, true).length), name)
    })
    for (const fn of row.functions) {
      const bodies = declarations(place(fn).folder, place(fn).name, false)
      const executed = bodies.some(b => lines.some(l => l.path === b.path && l.first >= b.first && l.last <= b.last))
      if (!executed) problems.push(`${row.what}: ${row.tests.join(', ')} never execute ${fn}`)
    }
  }
  rmSync(dir, { recursive: true, force: true })
  console.log(`${mapped.length} rows, ${seen.size} tests run`)
}
if (process.argv.includes('--cover')) cover()

console.log(`${planned.length} names are planned:`)
for (const p of new Set(planned.map(p => p.split('  ')[0]))) {
  console.log(`  ${p}: ${planned.filter(q => q.startsWith(`${p}  `)).map(q => q.slice(p.length + 2)).join('; ')}`)
}
for (const p of problems) console.log(`WRONG  ${p}`)
process.exitCode = problems.length ? 1 : 0
