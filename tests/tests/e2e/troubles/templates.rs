//! Services that are made from templates.

use super::Trouble;
use crate::cluster::{LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_tests::lab::{CLIENT, Lab, built};
use mainstay_tests::wait_for;
use std::fs;
use std::time::Duration;

/// A repeated check of pages comes a minute after a start, and the database is then started again.
const TURN_LIMIT: Duration = Duration::from_secs(120);

pub const TROUBLES: &[(&str, Trouble)] = &[
    ("troubles_postgresql_of_its_template_loses_no_row_with_the_power", postgresql),
    ("troubles_mariadb_of_its_template_loses_no_row_with_the_power", mariadb),
];

/// Wants MySQL in the place of `/usr/sbin/mysqld`: `make mysql-test`.
pub const LONG: &[(&str, Trouble)] = &[("troubles_mysql_of_its_template_loses_no_row_with_the_power", mysql)];

/// A database that a template knows, and how the test speaks with it.
struct Database {
    template: &'static str,
    vip: &'static str,
    /// A command of the node where it runs that runs the statements that follow.
    local: String,
    /// Statements that make a table and a user that may insert from elsewhere.
    made: &'static str,
    pages: Option<Pages>,
    /// A command of the client that runs the statement that follows, and prints nothing but values.
    remote: String,
}

/// A command of the node that says whether the database writes its pages twice, and what it prints
/// if it does not.
struct Pages {
    asks: String,
    once: &'static str,
    /// A no of a later check is tried as well, which takes more than a minute.
    turns: bool,
}

const MADE: &str = "CREATE DATABASE d; CREATE TABLE d.t (i INT PRIMARY KEY); CREATE USER w@'%' IDENTIFIED BY 'w'; GRANT ALL ON d.* TO w@'%'";

fn postgresql(lab: &Lab) -> Result<()> {
    power_cut(
        lab,
        &Database {
            template: "postgresql",
            vip: "10.213.0.81",
            local: "setpriv --reuid=postgres --regid=postgres --init-groups psql --host=/srv/postgresql/run -v ON_ERROR_STOP=1 -c".into(),
            made: "CREATE TABLE t (i INT PRIMARY KEY); CREATE USER w PASSWORD 'w'; GRANT ALL ON t TO w",
            pages: None,
            remote: "PGPASSWORD=w PGCONNECT_TIMEOUT=2 timeout 20 psql -h 10.213.0.81 -U w -At postgres -c".into(),
        },
    )
}

fn mariadb(lab: &Lab) -> Result<()> {
    power_cut(
        lab,
        &Database {
            template: "mariadb",
            vip: "10.213.0.82",
            local: "mariadb --no-defaults --socket=/srv/mariadb/run/mariadb.sock -e".into(),
            made: MADE,
            pages: Some(Pages {
                asks: "mariadb --no-defaults --socket=/srv/mariadb/run/mariadb.sock -BN -e 'SELECT @@innodb_doublewrite'".into(),
                once: "0",
                turns: false,
            }),
            remote: "timeout 20 mariadb --no-defaults --connect-timeout=2 -h 10.213.0.82 -u w -pw -BN d -e"
                .into(),
        },
    )
}

fn mysql(lab: &Lab) -> Result<()> {
    let programs = std::env::var("MAINSTAY_MYSQL").context("MAINSTAY_MYSQL, as `make mysql-test` sets it")?;
    let client = format!("{programs}/mysql --no-defaults");
    let local = format!("{client} --socket=/srv/mysql/run/mysql.sock");
    power_cut(
        lab,
        &Database {
            template: "mysql",
            vip: "10.213.0.83",
            local: format!("{local} -e"),
            made: MADE,
            pages: Some(Pages {
                asks: format!("{local} -BN -e 'SELECT @@innodb_doublewrite'"),
                once: "OFF",
                turns: true,
            }),
            // The server tells its key only to those who ask for it, or speak TLS.
            remote: format!(
                "timeout 20 {client} --get-server-public-key --connect-timeout=2 -h 10.213.0.83 -u w -pw -BN d -e"
            ),
        },
    )
}

/// The database has its doublewrite buffer if and only if a page can tear where it runs. Returns
/// whether it has none.
fn pages_as_checked(lab: &Lab, name: &str, node: &str, pages: &Pages) -> Result<bool> {
    let once = lab.shell(node, &pages.asks)?.trim() == pages.once;
    let program = built("mainstay")?;
    let program = program.display();
    let checked = lab.shell(
        node,
        &format!("{program} check atomic /srv/{name}/data --run-dir /run/mainstay 2>&1 || true"),
    )?;
    ensure!(once == checked.starts_with("MAINSTAY OK"), "{once}: {checked}");
    let history = lab.cli(&["service", "history", name])?;
    let words = if once { "with --innodb-doublewrite=OFF" } else { "without --innodb-doublewrite=OFF" };
    ensure!(history.contains(words), "{words} is not in: {history}");
    println!("{name} on {node}, written once: {once}; {}", checked.lines().next().unwrap_or_default());
    Ok(once)
}

/// A data file is written in part while the database runs without its doublewrite buffer. The
/// database is started again in place with it, and the operator is warned. It has none again when
/// the file is gone and an operator restarts the service.
fn pages_turn(lab: &Lab, name: &str, pages: &Pages) -> Result<()> {
    let node = lab.wait_running(name, LIMIT)?;
    if !pages_as_checked(lab, name, &node, pages)? {
        println!("{name} on {node}: no check can turn from yes to no");
        return Ok(());
    }
    let file = format!("/srv/{name}/data/ibdata-half");
    lab.shell(
        &node,
        &format!("fallocate -l 16384 {file} && dd if=/dev/zero of={file} bs=4096 count=1 conv=notrunc,fsync status=none"),
    )?;
    let turned = |wanted: bool| {
        let once = lab.shell(&node, &pages.asks)?.trim() == pages.once;
        let service = lab.service(name)?;
        let warned = service.hindrances.iter().any(|line| line.contains("and no longer with it"));
        ensure!(once != wanted && warned == wanted, "written once: {once}, {:?}", service.hindrances);
        ensure!(service.node.as_ref() == Some(&node), "it is on {:?}", service.node);
        ensure!(service.failures.is_empty(), "it counts {:?}", service.failures);
        Ok(())
    };
    wait_for("the doublewrite buffer and a warning", TURN_LIMIT, || turned(true))?;
    println!("{name} on {node}: {}", lab.service(name)?.hindrances.join("; "));
    ensure!(!pages_as_checked(lab, name, &node, pages)?, "a page can tear, and it is written once");
    lab.shell(&node, &format!("rm {file}"))?;
    lab.cli(&["service", "restart", name])?;
    wait_for("no doublewrite buffer and no warning", LIMIT, || turned(false))?;
    pages_as_checked(lab, name, &node, pages).map(drop)
}

/// Makes a database from its template and cuts the power of its node while a client inserts. Every
/// row that was acknowledged is there afterwards.
fn power_cut(lab: &Lab, database: &Database) -> Result<()> {
    let name = database.template;
    lab.create_resource(name, "448MiB", &NODES, &["--journal", "64MiB"])?;
    let file = lab.dir().join(format!("{name}-template.toml"));
    drop(fs::remove_file(&file));
    let path = file.to_string_lossy().into_owned();
    let create = |vip: &str| {
        lab.try_cli(&[
            "service",
            "create",
            name,
            "--resource",
            name,
            "--memory",
            "256MiB",
            "--vip",
            vip,
            "--output",
            &path,
        ])
    };
    // The address of a node is none for a service.
    let refused = create("10.213.0.1/24")?;
    ensure!(refused.code() != 0 && !file.exists(), "it was made: {}{}", refused.stdout, refused.stderr);
    fs::write(&file, "mine")?;
    let refused = create(&format!("{}/24", database.vip))?;
    ensure!(refused.stderr.contains("is not overwritten"), "{}", refused.stderr);
    ensure!(fs::read_to_string(&file)? == "mine", "the file was overwritten");
    fs::remove_file(&file)?;
    let made = create(&format!("{}/24", database.vip))?;
    ensure!(made.code() == 0, "{}{}", made.stdout, made.stderr);
    let node = lab.wait_running(name, LIMIT)?;
    // The file is what the cluster has.
    let again = lab.cli(&["service", "apply", &path])?;
    ensure!(again.contains("unchanged"), "{again}");

    lab.shell(&node, &format!("{} \"{}\"", database.local, database.made))?;
    if let Some(pages) = &database.pages {
        pages_as_checked(lab, name, &node, pages)?;
    }
    let acknowledged = lab.dir().join(format!("{name}-acknowledged"));
    let stop = lab.dir().join(format!("{name}-stop"));
    drop(fs::remove_file(&acknowledged));
    drop(fs::remove_file(&stop));
    let script = format!(
        "i=0; while [ ! -e {} ]; do i=$((i+1)); {} \"INSERT INTO t VALUES ($i)\" && echo $i >>{}; sleep 0.02; done",
        stop.display(),
        database.remote,
        acknowledged.display()
    );
    let mut writer = lab.spawn(CLIENT, &["sh", "-c", &script], &format!("{name}-writer.log"))?;
    let rows = || -> Result<Vec<u64>> {
        let text = fs::read_to_string(&acknowledged).unwrap_or_default();
        text.lines().map(|line| line.parse().with_context(|| format!("row {line}"))).collect()
    };
    let more_rows = |than: usize| {
        wait_for("acknowledged rows", LIMIT, || {
            let found = rows()?.len();
            ensure!(found >= than + 20, "{found}");
            Ok(found)
        })
    };
    let outcome = (|| -> Result<()> {
        more_rows(0)?;
        lab.kill(&node)?;
        let before = rows()?.len();
        more_rows(before)?;
        let now = lab.wait_running(name, LIMIT)?;
        ensure!(now != node, "{node} has no power");
        if let Some(pages) = &database.pages {
            pages_as_checked(lab, name, &now, pages)?;
        }
        Ok(())
    })();
    fs::write(&stop, "")?;
    let ended = mainstay_tests::command::wait(&mut writer, LIMIT);
    outcome?;
    ended?.context("the writer did not end")?;
    let acknowledged = rows()?;
    let there = lab.exec(CLIENT, &["sh", "-c", &format!("{} 'SELECT i FROM t'", database.remote)])?;
    let there: Vec<u64> = there.lines().filter_map(|line| line.trim().parse().ok()).collect();
    let lost: Vec<_> = acknowledged.iter().filter(|row| !there.contains(row)).collect();
    ensure!(lost.is_empty(), "lost {lost:?} of {} rows", acknowledged.len());
    lab.start(&node)?;
    lab.wait_in_sync(name, LIMIT)?;
    if let Some(pages) = database.pages.as_ref().filter(|pages| pages.turns) {
        pages_turn(lab, name, pages)?;
    }
    let report = lab.scrub(name)?;
    ensure!(report.equal, "replicas differ: {report:?}");
    lab.cli(&["service", "delete", name])?;
    lab.cli(&["resource", "delete", name, "--yes"]).map(drop)
}
