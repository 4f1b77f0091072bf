// Checks the tables of the NAME.md pages: every name in them exists in this
// repository, every property of a spec has its row, and every property that a
// constraint's comment or the code names exists. It lists what is planned.

import { readFileSync, readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'

const here = import.meta.dirname, root = join(here, '..')
const skip = new Set(['node_modules', '.git', 'specs', 'bin', '.lemma'])

function files(dir, suffix) {
  return readdirSync(dir).filter(f => !skip.has(f)).flatMap(f => {
    const path = join(dir, f)
    return statSync(path).isDirectory() ? files(path, suffix) : path.endsWith(suffix) ? [path] : []
  })
}
const text = path => readFileSync(path, 'utf8')
const go = files(root, '.go').map(path => ({ path: path.slice(root.length + 1), text: text(path) }))
const sql = files(join(root, 'migrations'), '.sql').map(text).join('\n')
const tests = go.filter(f => f.path.endsWith('_test.go')).map(f => f.text).join('\n')

const isConstraint = name => new RegExp(`(constraint|index)\\s+${name}\\b`, 'i').test(sql) || new RegExp(`\\b${name}\\b`).test(sql) && /_(pkey|check|fkey)$/.test(name)
const isTest = name => new RegExp(`^func ${name}\\(`, 'm').test(tests)
const isFunction = name => {
  const [, dir, fn] = name.match(/^([\w/]+)\.(\w+)$/) ?? []
  return Boolean(fn) && go.some(f => f.path.startsWith(`${dir}/`) && !f.path.slice(dir.length + 1).includes('/') &&
    !f.path.endsWith('_test.go') && new RegExp(`^func (\\([^)]*\\) )?${fn}\\(`, 'm').test(f.text))
}

const specs = readdirSync(here).filter(f => f.endsWith('.tla')).map(f => f.slice(0, -4))
const properties = {}
const problems = [], planned = []
for (const spec of specs) {
  const [, holds = ''] = text(join(here, `${spec}.tla`)).match(/^\\\* What holds([\s\S]*?)^\\\* What must be reachable/m) ?? []
  properties[spec] = [...holds.matchAll(/^([A-Z]\w+) ==/gm)].map(m => m[1]).filter(p => p !== 'TypeOK')
}

const names = cell => [...cell.matchAll(/`([^`]+)`/g)].map(m => m[1])
for (const spec of specs) {
  const rows = text(join(here, `${spec}.md`)).split('\n').filter(l => l.startsWith('| ') && !l.startsWith('| property')).map(l => l.split('|').slice(1, -1).map(c => c.trim()))
  const listed = rows.flatMap(r => names(r[0]))
  for (const p of properties[spec]) if (!listed.includes(p)) problems.push(`${spec}.md has no row for ${p}`)
  for (const p of listed) if (!properties[spec].includes(p)) problems.push(`${spec}.md: ${p} is no property of ${spec}.tla`)
  for (const [property, constraint, fn, test] of rows) {
    const what = `${spec}!${property.replaceAll('`', '')}`
    for (const [kind, cell, known] of [['constraint', constraint, isConstraint], ['function', fn, isFunction], ['test', test, isTest]]) {
      if (cell.startsWith('planned')) { planned.push(`${what}  ${kind}${cell.slice(7)}`); continue }
      for (const name of names(cell)) if (!known(name)) problems.push(`${what}: no ${kind} ${name}`)
      if (kind !== 'constraint' && names(cell).length === 0) problems.push(`${what}: names no ${kind}`)
    }
  }
}
for (const { path, text } of [{ path: 'migrations', text: sql }, ...go]) {
  for (const [, spec, property] of text.matchAll(/\b([A-Z]\w+)!([A-Z]\w+)/g)) {
    if (properties[spec] && !properties[spec].includes(property)) problems.push(`${path} names ${spec}!${property}, which is no property`)
  }
}

console.log(`${planned.length} names are planned:`)
for (const p of new Set(planned.map(p => p.split('  ')[0]))) {
  console.log(`  ${p}: ${planned.filter(q => q.startsWith(`${p}  `)).map(q => q.slice(p.length + 2)).join('; ')}`)
}
for (const p of problems) console.log(`WRONG  ${p}`)
process.exitCode = problems.length ? 1 : 0
